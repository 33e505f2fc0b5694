"""`/v1/chat/completions` and `/v1/completions`: thin translations between OpenAI's shapes and the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.ids import new_id
from rondo.client.engine import Engine
from rondo.client.openai import ChatRequest, CompletionRequest, SamplingBody, parse
from rondo.client.types import GenerateRequest, SamplingParams, TokenChunk
from rondo.server.http import DONE, EventStream, event_of, read_body, unless_gone
from rondo.server.prompts import Prompts
from rondo.server.shapes import Tokens, UsageCount, chat_logprobs, completion_logprobs, join

MAX_PROMPTS = 2048


@dataclass(frozen=True)
class Served:
    """The model behind the routes."""

    engine: Engine
    prompts: Prompts
    tokens: Tokens
    name: str
    aliases: frozenset[str]
    max_model_len: int
    max_queued: int
    max_body_bytes: int
    allow_priority: bool
    created: int
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The engine's requests behind each answer that is under way."""

    @contextmanager
    def under_way(self, job: Job) -> Iterator[None]:
        self.parts[job.id] = tuple(request.id for request in job.requests)
        try:
            yield
        finally:
            del self.parts[job.id]

    @property
    def adapters(self) -> Sequence[str]:
        """Their names, but for those that the model itself goes by."""
        return [name for name in self.engine.adapters() if not self.is_base(name)]

    def shown(self, name: str) -> str:
        """What an answer calls the model that was asked for."""
        return self.adapter(name) or self.name

    def is_base(self, name: str) -> bool:
        return name == self.name or name in self.aliases

    def adapter(self, name: str) -> str | None:
        """The adapter that goes by that name; None if it is the model itself."""
        if self.is_base(name):
            return None
        if not self.engine.has_adapter(name):
            raise NotFound(
                f"the model {name!r} does not exist here; this server has {self.name!r}.",
                param="model",
                code="model_not_found",
            )
        return name

    def check_room(self, body: SamplingBody, prompts: int) -> None:
        """Samples that can never wait together are refused before the first of them is begun."""
        n = body.n or 1
        if prompts * n > self.max_queued:
            raise InvalidRequest(
                f"{prompts} prompts with n = {n} make {prompts * n} samples, but at most {self.max_queued} may wait "
                "here (engine.max_queued). Ask for fewer at a time.",
                param="n" if n > 1 else "prompt",
            )

    def check_priority(self, body: SamplingBody) -> None:
        if body.priority and not self.allow_priority:
            raise InvalidRequest(
                "priority is not allowed here; the server's setting server.allow_priority turns it on.",
                param="priority",
            )


@dataclass(frozen=True)
class Job:
    """One HTTP request on its way: what goes to the engine, and how its chunks are shown.

    `choice(chunk, index, whole)` makes one element of `choices`, for a stream or for a whole answer.
    """

    id: str
    kind: str
    model: str
    body: SamplingBody
    requests: Sequence[GenerateRequest]
    choice: Callable[[TokenChunk, int, bool], dict[str, Any]]
    first: Callable[[int], dict[str, Any]] | None = None

    def index(self, prompt: int, chunk: TokenChunk) -> int:
        return prompt * (self.body.n or 1) + chunk.index

    def head(self, streamed: bool) -> dict[str, Any]:
        kind = f"{self.kind}.chunk" if streamed and self.kind == "chat.completion" else self.kind
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}


async def chat(served: Served, request: Request) -> ASGIApp:
    raw = await read_body(request, served.max_body_bytes)
    body = parse(ChatRequest, raw)
    sampling = _check(served, body, 1)
    prompt = await served.prompts.of_chat(body, len(raw))
    request_id = new_id("chatcmpl")
    generate = GenerateRequest(request_id, prompt, sampling, body.priority, served.adapter(body.model))

    def choice(chunk: TokenChunk, index: int, whole: bool) -> dict[str, Any]:
        text = {"message": {"role": "assistant", "content": chunk.text, "refusal": None}}
        shown: dict[str, Any] = {"index": index} | (text if whole else {"delta": {"content": chunk.text}})
        return shown | {"logprobs": chat_logprobs(served.tokens, chunk)} | _ending(body, chunk, whole)

    def first(index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    job = Job(request_id, "chat.completion", served.shown(body.model), body, [generate], choice, first)
    return await _answer(served, request, job)


async def completions(served: Served, request: Request) -> ASGIApp:
    body = parse(CompletionRequest, await read_body(request, served.max_body_bytes))
    prompts = body.prompts()
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"at most {MAX_PROMPTS} prompts in one request.", param="prompt")
    sampling = _check(served, body, len(prompts))
    encoded = iter(await served.prompts.of_texts([prompt for prompt in prompts if isinstance(prompt, str)]))
    ids = [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]
    request_id = new_id("cmpl")
    adapter = served.adapter(body.model)
    requests = [
        GenerateRequest(f"{request_id}-{i}", prompt, sampling, body.priority, adapter)
        for i, prompt in enumerate(ids)
    ]
    offsets: dict[int, int] = {}

    def choice(chunk: TokenChunk, index: int, whole: bool) -> dict[str, Any]:
        text, begun, offset = chunk.text, index in offsets, offsets.get(index, 0)
        if body.echo and not begun:
            given = prompts[index // (body.n or 1)]
            text = (given if isinstance(given, str) else served.prompts.tokenizer.decode(given)) + text
        # The tokens' own lengths, and not the chunks' of text: text may be held back, or cut at a stop string.
        logprobs, offsets[index] = completion_logprobs(served.tokens, chunk, offset)
        return {"index": index, "text": text, "logprobs": logprobs} | _ending(body, chunk, whole)

    job = Job(request_id, "text_completion", served.shown(body.model), body, requests, choice)
    return await _answer(served, request, job)


def _check(served: Served, body: ChatRequest | CompletionRequest, prompts: int) -> SamplingParams:
    """All that can be refused before a prompt is looked at."""
    served.adapter(body.model)
    served.check_priority(body)
    sampling = body.to_sampling()
    served.check_room(body, prompts)
    return sampling


def _ending(body: SamplingBody, chunk: TokenChunk, whole: bool) -> dict[str, Any]:
    """`weight_version` is that of the newest token; `token_ids` only where asked for."""
    ending: dict[str, Any] = {"finish_reason": chunk.finish_reason, "stop_reason": chunk.stop_reason}
    if chunk.weight_versions:
        ending["weight_version"] = chunk.weight_versions[-1]
    if body.return_token_ids:
        ending["token_ids"] = chunk.token_ids
        ending["weight_versions"] = chunk.weight_versions
    return ending


async def _answer(served: Served, request: Request, job: Job) -> ASGIApp:
    if job.body.stream_options is not None and not job.body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    if job.body.stream:
        return EventStream(_events(served, job))
    return await unless_gone(request, _whole(served, job))


async def _whole(served: Served, job: Job) -> Response:
    usage = UsageCount()

    async def finish(generate: GenerateRequest) -> list[TokenChunk]:
        chunks = []
        async with aclosing(served.engine.generate(generate)) as stream:
            async for chunk in stream:
                usage.count(chunk)
                chunks.append(chunk)
        return join(chunks)

    with served.under_way(job):
        samples = await _gather([finish(generate) for generate in job.requests])
    choices = [
        job.choice(chunk, job.index(prompt, chunk), True)
        for prompt, chunks in enumerate(samples)
        for chunk in chunks
    ]
    return JSONResponse(job.head(streamed=False) | {"choices": choices, "usage": usage.body()})


async def _events(served: Served, job: Job) -> AsyncGenerator[bytes, None]:
    usage = UsageCount()
    head = job.head(streamed=True)
    options = job.body.stream_options
    with_usage = options is not None and options.include_usage
    begun: set[int] = set()
    with served.under_way(job):
        async with aclosing(_merge(served, job)) as stream:
            async for prompt, chunk in stream:
                usage.count(chunk)
                index = job.index(prompt, chunk)
                if job.first is not None and index not in begun:
                    begun.add(index)
                    yield event_of(_with_usage(head | {"choices": [job.first(index)]}, with_usage))
                if chunk.text or chunk.finish_reason or chunk.logprobs or job.body.return_token_ids:
                    event = head | {"choices": [job.choice(chunk, index, False)]}
                    if options is not None and options.continuous_usage_stats:
                        event["usage"] = usage.body()
                    yield event_of(_with_usage(event, with_usage))
    if with_usage:
        yield event_of(head | {"choices": [], "usage": usage.body()})
    yield DONE


def _with_usage(event: dict[str, Any], with_usage: bool) -> dict[str, Any]:
    return {"usage": None} | event if with_usage else event


async def _merge(served: Served, job: Job) -> AsyncGenerator[tuple[int, TokenChunk], None]:
    """The chunks of all prompts as they come."""
    if len(job.requests) == 1:
        async with aclosing(served.engine.generate(job.requests[0])) as stream:
            async for chunk in stream:
                yield 0, chunk
        return
    # One place a prompt: a reader that is slow holds back only readers, and the engine's streams join their chunks.
    queue: asyncio.Queue[tuple[int, TokenChunk] | Exception | None] = asyncio.Queue(len(job.requests))

    async def pump(index: int, generate: GenerateRequest) -> None:
        try:
            async with aclosing(served.engine.generate(generate)) as stream:
                async for chunk in stream:
                    await queue.put((index, chunk))
            await queue.put(None)
        except Exception as error:
            # Whatever it is: the reader waits for a word from each prompt.
            await queue.put(error)

    tasks = [asyncio.create_task(pump(i, generate)) for i, generate in enumerate(job.requests)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gather(work: Sequence[Any]) -> list[list[TokenChunk]]:
    """All results; the first error cancels the rest."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
