"""vLLM as a process of ours: asked over HTTP, token ids in and out, and started again when it ends."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import httpx

from rondo.base.errors import ModelError, RondoError, Unavailable
from rondo.base.log import get_logger
from rondo.client.answers import Events, error_of
from rondo.client.engine import PauseMode
from rondo.engine.vllm.backend import Adapter, Asked, Piece, likeliest, spread
from rondo.engine.vllm.process import URL, VllmProcess

log = get_logger("rondo.engine.vllm")

WITHIN_SECONDS = 600
"""Of starts again: more than some in this time mean that it will not do."""
NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


class Remote:
    def __init__(
        self,
        process: VllmProcess,
        arguments: Sequence[str],
        model: str,
        version: int,
        restarts: int,
        on_failure: Callable[[RondoError], None],
    ) -> None:
        """Blocks until vLLM has started with the weights in `model`."""
        self.process = process
        self.up = False
        self._arguments = list(arguments)
        self._weights = model, version
        self._adapters: dict[str, Adapter] = {}
        self._restarts = restarts
        self._on_failure = on_failure
        self._stopped = threading.Event()
        self._why = "is starting"
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control = process.client()
        self._start()
        self._watcher = threading.Thread(target=self._watch, name="rondo-vllm", daemon=True)
        self._watcher.start()

    async def stream(self, asked: Asked) -> AsyncGenerator[Piece, None]:
        body = {
            "token_ids": list(asked.request.prompt_ids),
            "sampling_params": asked.sampling(),
            "model": asked.adapter.inner_name if asked.adapter else "base",
            "cache_salt": asked.salt,
            "priority": asked.request.priority,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._check_up()
        events = Events()
        try:
            async with self._http().stream("POST", "/inference/v1/generate", json=body) as answer:
                if not answer.is_success:
                    raise refusal(answer.status_code, await answer.aread())
                async for data in answer.aiter_bytes():
                    for event in events.push(data):
                        for piece in pieces(event, asked):
                            yield piece
        except httpx.HTTPError as error:
            raise self._lost() from error

    async def pause(self, mode: PauseMode) -> None:
        await self._verb("/pause", params={"mode": mode, "clear_cache": "false"})

    async def resume(self) -> None:
        await self._verb("/resume")

    async def sleep(self, level: int, mode: PauseMode) -> None:
        await self._verb("/sleep", params={"level": level, "mode": mode})

    async def wake(self, tags: Sequence[str] | None) -> None:
        await self._verb("/wake_up", params={"tags": list(tags or ())})

    async def reset_prefix_cache(self) -> None:
        await self._verb("/reset_prefix_cache")

    async def load_adapter(self, adapter: Adapter) -> None:
        await asyncio.to_thread(self._load_adapter, adapter)
        self._adapters[adapter.inner_name] = adapter

    async def unload_adapter(self, adapter: Adapter) -> None:
        self._adapters.pop(adapter.inner_name, None)
        await self._verb("/v1/unload_lora_adapter", {"lora_name": adapter.inner_name})

    async def transfer(self, path: str, version: int) -> None:
        """If vLLM itself ends meanwhile, it is started again with the weights it had."""
        await asyncio.to_thread(self._transfer, path, version)
        self._weights = path, version

    def stop(self) -> None:
        self._stopped.set()
        self.process.stop()
        self._watcher.join(timeout=30)
        self._control.close()

    def _transfer(self, path: str, version: int) -> None:
        self._ask("/start_weight_update")
        self._ask("/update_weights", {"update_info": {"path": path, "version": version}})
        self._ask("/finish_weight_update", {"weight_version": str(version)})

    def _load_adapter(self, adapter: Adapter) -> None:
        self._ask("/v1/load_lora_adapter", {"lora_name": adapter.inner_name, "lora_path": adapter.path})

    def _start(self) -> None:
        folder, version = self._weights
        self.process.start(
            ["--model", folder, "--served-model-name", "base", *self._arguments], self._stopped
        )
        self.up = True
        self._ask("/update_weight_version", {"new_version": str(version)})
        for adapter in self._adapters.values():
            self._load_adapter(adapter)

    def _watch(self) -> None:
        """In a thread of its own: whoever asks meanwhile is told so."""
        starts: deque[float] = deque()
        while True:
            how = self.process.wait()
            self.up = False
            if self._stopped.is_set():
                return
            self._why = f"{how}, and is being started again"
            log.error("vLLM ended", extra={"how": how})
            now = time.monotonic()
            while starts and now - starts[0] > WITHIN_SECONDS:
                starts.popleft()
            if len(starts) >= self._restarts:
                self._on_failure(
                    Unavailable(
                        f"vLLM {how}, for the last time (engine.vllm.restarts).", code="engine_failed"
                    )
                )
                return
            starts.append(now)
            try:
                self._start()
            except Exception as error:
                if not self._stopped.is_set():
                    log.exception("vLLM could not be started again")
                    self._on_failure(
                        Unavailable(f"vLLM could not be started again: {error}", code="engine_failed")
                    )
                return

    def _check_up(self) -> None:
        if not self.up:
            raise Unavailable(f"vLLM {self._why}. Ask again in a while.", code="engine_restarting")

    def _lost(self) -> Unavailable:
        return Unavailable(
            "vLLM ended in the middle of this request; it is being started again. Ask again in a while.",
            code="engine_restarting",
        )

    def _http(self) -> httpx.AsyncClient:
        """A client's connections belong to one event loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            transport = httpx.AsyncHTTPTransport(uds=self.process.socket, limits=NO_LIMITS)
            self._client = httpx.AsyncClient(base_url=URL, transport=transport, timeout=None)
            self._loop = loop
        return self._client

    async def _verb(
        self, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> None:
        self._check_up()
        await asyncio.to_thread(self._ask, path, body, params)

    def _ask(
        self, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> None:
        self._check_up()
        try:
            answer = self._control.post(path, json=body, params=params)
        except httpx.HTTPError as error:
            raise self._lost() from error
        if not answer.is_success:
            raise refusal(answer.status_code, answer.content)


def refusal(status: int, data: bytes) -> RondoError:
    """What vLLM refuses is said in its words. Its own failures (5xx) are not the client's, but it serves on."""
    try:
        said = json.loads(data)
        details = said.get("error", said)
    except (ValueError, AttributeError):
        details = data.decode("utf-8", "replace")[:500]
    if status >= 500:
        message = details.get("message", "") if isinstance(details, dict) else details
        return ModelError(f"vLLM could not do it: {worker_error(str(message))}", code="vllm_error")
    return error_of(status, details)


def worker_error(message: str) -> str:
    """What a worker said, without what the processes between added to it."""
    _, _, rest = message.partition("Worker failed with error '")
    return rest.rpartition("', please check")[0] or message


def pieces(event: Mapping[str, Any], asked: Asked) -> list[Piece]:
    """Of one event of a stream."""
    params = asked.request.sampling
    usage = event.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    found = []
    for choice in event["choices"]:
        logprobs = top = None
        if params.logprobs is not None:
            content = (choice.get("logprobs") or {}).get("content") or []
            logprobs = [entry["logprob"] for entry in content]
            top = [
                likeliest(
                    [(each["token_id"], each["logprob"], each["rank"]) for each in entry["top_logprobs"]],
                    params.logprobs,
                )
                for entry in content
            ]
        found.append(
            Piece(
                index=choice["index"],
                tokens=choice["token_ids"] or (),
                logprobs=logprobs,
                top=top,
                finish_reason=choice["finish_reason"],
                stop_reason=choice["stop_reason"],
                versions=spread(choice["weight_versions"]),
            )
        )
    if cached is not None and not found:
        found.append(Piece(index=0, tokens=(), cached=cached))
    return found
