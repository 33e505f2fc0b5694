"""Sends every request of a benchmark on schedule and records the time of each token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rondo.base.errors import RondoError, Unavailable
from rondo.client.answers import LineSplitter
from rondo.client.bench.prompts import Ask
from rondo.client.bench.wire import ConnectionPool, ServerAddress

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
SHOWN = 300
"""Characters of a server's error."""
PAUSE = 0.5
"""Seconds between two readiness checks of a server."""


@dataclass(slots=True)
class RequestOutcome:
    """One request as measured by its client; times in seconds, `started` on the clock of `time.perf_counter`."""

    started: float
    first: float = 0.0
    """Seconds from the start to the first token; 0 until then."""
    gaps: list[float] = field(default_factory=list)
    latency: float = 0.0
    """Seconds from the start to the last token."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class TargetServer:
    address: ServerAddress
    endpoint: str
    model: str
    api_key: str | None = None
    ignore_eos: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as `temperature`."""

    def body(self, ask: Ask) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            text = isinstance(ask.prompt, str)
            body["messages"] = [{"role": "user", "content": ask.prompt}] if text else ask.prompt
            body["max_completion_tokens"] = ask.max_tokens
        else:
            body["prompt"] = ask.prompt
            body["max_tokens"] = ask.max_tokens
        if self.ignore_eos:
            body["ignore_eos"] = True
        return json.dumps(body | self.extra).encode()

    def pool(self) -> ConnectionPool:
        return ConnectionPool(
            self.address, {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        )


@asynccontextmanager
async def opened(server: TargetServer) -> AsyncIterator[ConnectionPool]:
    pool = server.pool()
    try:
        yield pool
    finally:
        pool.close()


async def first_model(server: TargetServer) -> str:
    """The first model in the server's list, the default."""
    answer = bytearray()
    async with opened(server) as pool:
        try:
            status = await pool.send(pool.request("GET", "/v1/models"), answer.extend)
        except OSError as error:
            raise Unavailable(f"no answer from {server.address} ({error}). Is the server running?") from error
    try:
        return str(json.loads(answer)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        said = answer.decode(errors="replace")[:SHOWN]
        raise RondoError(
            f"{server.address}/v1/models names no model (status {status}: {said}). Say --model NAME."
        ) from None


async def wait_until_ready(server: TargetServer, ask: Ask, seconds: float) -> TargetServer:
    """Waits for a first successful response. Returns the server with the model's name, if it had none."""
    until = time.monotonic() + seconds
    while True:
        try:
            named = server if server.model else replace(server, model=await first_model(server))
            [outcome], _ = await run_load(named, [ask], [0.0])
            error = outcome.error
            if not error:
                return named
        except RondoError as raised:
            error = str(raised)
        if time.monotonic() + PAUSE > until:
            raise Unavailable(f"{server.address} was not ready within {seconds:g} s: {error}")
        await asyncio.sleep(PAUSE)


async def run_load(
    server: TargetServer,
    asked: Sequence[Ask],
    times: Sequence[float],
    max_concurrency: int | None = None,
    on_done: Callable[[int], None] = lambda done: None,
) -> tuple[list[RequestOutcome], float]:
    """Outcome of each request, and the total duration."""
    limit = asyncio.Semaphore(max_concurrency or len(asked))
    done = 0
    async with opened(server) as pool:
        requests = [pool.request("POST", PATHS[server.endpoint], server.body(ask)) for ask in asked]

        async def one(request: bytes) -> RequestOutcome:
            nonlocal done
            async with limit:
                outcome = await _ask(pool, request, server.endpoint == "chat")
            done += 1
            on_done(done)
            return outcome

        began = time.perf_counter()
        tasks = []
        for request, due in zip(requests, times, strict=True):
            wait = began + due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(request)))
        outcomes = await asyncio.gather(*tasks)
        return outcomes, time.perf_counter() - began


async def _ask(pool: ConnectionPool, request: bytes, chat: bool) -> RequestOutcome:
    reader = _Reader(chat)
    try:
        status = await pool.send(request, reader.feed)
        reader.finish(status)
    except TimeoutError:
        reader.outcome.error = f"no whole answer within {pool.timeout:.0f} s"
    except (RondoError, OSError, ValueError) as error:
        reader.outcome.error = f"{type(error).__name__}: {error}"
    return reader.outcome


class _Reader:
    """Server-sent events of one answer, timed as they come."""

    def __init__(self, chat: bool) -> None:
        self.outcome = RequestOutcome(time.perf_counter())
        self._chat = chat
        self._lines = LineSplitter()
        self._said = b""
        self._last = 0.0
        self._complete = False

    def feed(self, data: bytes) -> None:
        now = time.perf_counter()
        self._said += data[: SHOWN - len(self._said)]
        for line in self._lines.push(data):
            if line.startswith(b"data:"):
                event = line[5:].strip()
                try:
                    self._take(event, now)
                except (ValueError, TypeError, LookupError, AttributeError):
                    said = event.decode(errors="replace")[:SHOWN]
                    raise ValueError(f"the server sent an event that is not OpenAI's: {said}") from None

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._complete = True
            return
        body = json.loads(data)
        if "error" in body:
            self.outcome.error = json.dumps(body["error"])[:SHOWN]
        if (usage := body.get("usage")) is not None:
            self.outcome.prompt_tokens = int(usage["prompt_tokens"])
            self.outcome.output_tokens = int(usage["completion_tokens"])
        if body.get("choices") and (not self._chat or _has_token(body["choices"][0])):
            self._tick(now)

    def _tick(self, now: float) -> None:
        outcome = self.outcome
        if not self._last:
            outcome.first = now - outcome.started
        else:
            outcome.gaps.append(now - self._last)
        self._last = now
        outcome.latency = now - outcome.started

    def finish(self, status: int) -> None:
        outcome = self.outcome
        if outcome.error:
            return
        if status != 200:
            outcome.error = f"status {status}: {self._said.decode(errors='replace')}"
        elif not self._complete:
            outcome.error = "the stream ended without [DONE]"
        elif not self._last:
            outcome.error = "the stream had no tokens"
        elif not outcome.output_tokens:
            outcome.error = "the server did not say usage: it needs stream_options.include_usage"


def _has_token(choice: dict[str, Any]) -> bool:
    """A chat begins with an event that has the role alone."""
    delta = choice.get("delta") or {}
    return bool(choice.get("finish_reason") or any(value for name, value in delta.items() if name != "role"))
