"""The HTTP client of an engine, sync and async: `rondo.Client("http://127.0.0.1:8000").chat("Hello")`.

Answers are the server's JSON as it is; a refusal is the `RondoError` that the server raised, told by its
status.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import httpx

from rondo.base.errors import ConfigError, NotFound, RondoError, Unavailable
from rondo.client.answers import SseParser, checked, checked_verb, refusal
from rondo.client.platform.jobs import JobVerbs, SyncJobs
from rondo.client.platform.queue import AsyncQueue, SyncQueue
from rondo.client.platform.registry import RegistryVerbs
from rondo.client.verbs import EngineVerbs

DEFAULT_URL = "http://127.0.0.1:8000"
"""The gateway of `rondo up` on this machine."""
ENGINE_URL = "http://127.0.0.1:8001"
"""The engine server of `rondo serve` on this machine."""
TIMEOUT = httpx.Timeout(600.0, connect=10.0)

Messages = str | Sequence[Mapping[str, Any]]
Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


WeightPlace = str | os.PathLike[str] | Mapping[str, Any]
"""A folder on the server's disk, or an `update_info` without its version."""


class _Base:
    """Common parts of both clients: the server's address, its keys and its errors."""

    timeout: ClassVar[httpx.Timeout | None] = TIMEOUT

    def __init__(self, base_url: str | None, api_key: str | None, admin_key: str | None) -> None:
        url = base_url or os.environ.get("RONDO_BASE_URL") or DEFAULT_URL
        self.base_url = url.rstrip("/").removesuffix("/v1")
        key = os.environ.get("RONDO_API_KEY") if api_key is None else api_key
        self._options: dict[str, Any] = {
            "base_url": self.base_url,
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "timeout": self.timeout,
        }
        self._model: str | None = None
        self._admin_key = admin_key or os.environ.get("RONDO_ADMIN_KEY")

    def _operator(self) -> dict[str, str]:
        """Headers of admin requests."""
        if not self._admin_key:
            raise ConfigError(
                "this needs the server's admin key: pass admin_key=..., or set RONDO_ADMIN_KEY.",
                param="admin_key",
            )
        return {"X-Admin-Key": self._admin_key}

    def _unreachable(self, error: httpx.HTTPError) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(f"no answer from {self.base_url} ({reason}). Is the server running?")

    def _refused(self, answer: httpx.Response) -> RondoError:
        return refusal(answer)

    def _accepted(self, answer: httpx.Response) -> httpx.Response:
        if not answer.is_success:
            raise self._refused(answer)
        return answer


class Client(_Base, EngineVerbs[dict[str, Any]], RegistryVerbs[dict[str, Any]], SyncQueue, SyncJobs):
    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        admin_key: str | None = None,
    ) -> None:
        """`base_url`, `api_key` and `admin_key` default to RONDO_BASE_URL, RONDO_API_KEY and RONDO_ADMIN_KEY."""
        super().__init__(base_url, api_key, admin_key)
        self._http = httpx.Client(transport=transport, **self._options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def health(self, seconds: float | None = None) -> bool:
        """Whether the server responds, within `seconds` if given, and has not failed."""
        return self._probe("/health", seconds) is not None

    def ready(self, seconds: float | None = None) -> bool:
        """Whether the server computes requests now: not while it starts, pauses or sleeps."""
        return self._probe("/ready", seconds) is not None

    def metrics(self, seconds: float | None = None) -> str:
        """Metrics in Prometheus' text format; empty if the server does not respond."""
        answer = self._probe("/metrics", seconds)
        return "" if answer is None else answer.text

    def models(self) -> list[str]:
        return _names(self.model_cards())

    def chat(self, messages: Messages, model: str | None = None, **options: Any) -> dict[str, Any]:
        return self._call(
            "POST", "/v1/chat/completions", chat_body(messages, model or self._first(), options)
        )

    def stream_chat(
        self, messages: Messages, model: str | None = None, **options: Any
    ) -> Iterator[dict[str, Any]]:
        return self.events("/v1/chat/completions", chat_body(messages, model or self._first(), options))

    def complete(self, prompt: Prompt, model: str | None = None, **options: Any) -> dict[str, Any]:
        return self._call("POST", "/v1/completions", completion_body(prompt, model or self._first(), options))

    def stream_complete(
        self, prompt: Prompt, model: str | None = None, **options: Any
    ) -> Iterator[dict[str, Any]]:
        return self.events("/v1/completions", completion_body(prompt, model or self._first(), options))

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Server-sent events of a streamed response."""
        parser = SseParser()
        for data in self._pieces("POST", path, json=body | {"stream": True}):
            yield from parser.push(data)

    def _pieces(self, method: str, path: str, **options: Any) -> Generator[bytes, None, None]:
        try:
            with self._http.stream(method, path, **options) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._refused(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def push_weights(self, place: WeightPlace, version: int) -> None:
        """A whole weight update from a folder on the server's disk, or from `{"source": ...}`. After an error the
        previous version is in use."""
        self.start_weight_update()
        try:
            self._write_weights(place, version)
        except BaseException:
            with suppress(RondoError):
                self.abort_weight_update()
            raise

    def send_weights(self, place: WeightPlace, version: int) -> None:
        """As `push_weights`, for vLLM, which ends a failed update itself."""
        self.start_weight_update()
        self._write_weights(place, version)

    def _write_weights(self, place: WeightPlace, version: int) -> None:
        self.update_weights(_update_info(place, version))
        self.finish_weight_update(str(version))

    def _first(self) -> str:
        """The server's own model, the default."""
        if self._model is None:
            self._model = _only(self.models())
        return self._model

    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return checked(self._send(method, path, json=body, headers=headers))

    def _admin(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        headers = self._operator()
        return checked_verb(self._send(method, path, json=body, params=params, headers=headers))

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._accepted(self._http.request(method, path, **options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _probe(self, path: str, seconds: float | None) -> httpx.Response | None:
        timeout = httpx.USE_CLIENT_DEFAULT if seconds is None else seconds
        try:
            answer = self._http.get(path, timeout=timeout)
        except httpx.HTTPError:
            return None
        return answer if answer.is_success else None


class AsyncClient(
    _Base,
    EngineVerbs[Awaitable[dict[str, Any]]],
    RegistryVerbs[Awaitable[dict[str, Any]]],
    AsyncQueue,
    JobVerbs[Awaitable[dict[str, Any]]],
):
    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        admin_key: str | None = None,
    ) -> None:
        super().__init__(base_url, api_key, admin_key)
        self._http = httpx.AsyncClient(transport=transport, **self._options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def health(self, seconds: float | None = None) -> bool:
        """As the other client's, like `ready` and `metrics`."""
        return await self._probe("/health", seconds) is not None

    async def ready(self, seconds: float | None = None) -> bool:
        return await self._probe("/ready", seconds) is not None

    async def metrics(self, seconds: float | None = None) -> str:
        answer = await self._probe("/metrics", seconds)
        return "" if answer is None else answer.text

    async def models(self) -> list[str]:
        return _names(await self.model_cards())

    async def chat(self, messages: Messages, model: str | None = None, **options: Any) -> dict[str, Any]:
        body = chat_body(messages, model or await self._first(), options)
        return await self._call("POST", "/v1/chat/completions", body)

    async def stream_chat(
        self, messages: Messages, model: str | None = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        body = chat_body(messages, model or await self._first(), options)
        async for event in self.events("/v1/chat/completions", body):
            yield event

    async def complete(self, prompt: Prompt, model: str | None = None, **options: Any) -> dict[str, Any]:
        body = completion_body(prompt, model or await self._first(), options)
        return await self._call("POST", "/v1/completions", body)

    async def stream_complete(
        self, prompt: Prompt, model: str | None = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        body = completion_body(prompt, model or await self._first(), options)
        async for event in self.events("/v1/completions", body):
            yield event

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Server-sent events of a streamed response."""
        try:
            async with self._http.stream("POST", path, json=body | {"stream": True}) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise self._refused(answer)
                parser = SseParser()
                async for data in answer.aiter_bytes():
                    for event in parser.push(data):
                        yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def push_weights(self, place: WeightPlace, version: int) -> None:
        """As the other client's, like `send_weights`."""
        await self.start_weight_update()
        try:
            await self._write_weights(place, version)
        except BaseException:
            with suppress(RondoError):
                await self.abort_weight_update()
            raise

    async def send_weights(self, place: WeightPlace, version: int) -> None:
        await self.start_weight_update()
        await self._write_weights(place, version)

    async def _write_weights(self, place: WeightPlace, version: int) -> None:
        await self.update_weights(_update_info(place, version))
        await self.finish_weight_update(str(version))

    async def _first(self) -> str:
        if self._model is None:
            self._model = _only(await self.models())
        return self._model

    async def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return checked(await self._send(method, path, json=body, headers=headers))

    async def _admin(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        headers = self._operator()
        return checked_verb(await self._send(method, path, json=body, params=params, headers=headers))

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._accepted(await self._http.request(method, path, **options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _probe(self, path: str, seconds: float | None) -> httpx.Response | None:
        timeout = httpx.USE_CLIENT_DEFAULT if seconds is None else seconds
        try:
            answer = await self._http.get(path, timeout=timeout)
        except httpx.HTTPError:
            return None
        return answer if answer.is_success else None


def _update_info(place: WeightPlace, version: int) -> dict[str, Any]:
    info = dict(place) if isinstance(place, Mapping) else {"path": os.fspath(place)}
    return info | {"version": version}


def chat_body(messages: Messages, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A text alone is one message of the user's."""
    given = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return {"model": model, "messages": given, **options}


def completion_body(prompt: Prompt, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, **options}


def _names(answer: Mapping[str, Any]) -> list[str]:
    return [card["id"] for card in answer["data"]]


def _only(names: list[str]) -> str:
    if not names:
        raise NotFound("the server has no model.", param="model")
    return names[0]
