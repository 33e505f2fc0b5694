"""Generation of an answer, whole or streamed: the common path of chat and plain completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import SamplingBody
from rondo.client.protocol.refusals import renaming
from rondo.client.ranking import best, spread
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.server.answers.shapes import UsageCount, join
from rondo.server.served import ServedModel
from rondo.web.http import DONE, EventStream, Json, event_of, gather, note_ignored, unless_gone, with_signs


@dataclass(frozen=True)
class PendingCompletion:
    """One pending HTTP request: the engine's requests and the format of their chunks.

    `choices(chunk, index, whole)` returns one element of `choices` for a whole answer, and one per event for a stream.
    """

    id: str
    kind: str
    model: str
    body: SamplingBody
    requests: Sequence[GenerateRequest]
    choices: Callable[[TokenChunk, int, bool], list[dict[str, Any]]]
    first: Callable[[int], dict[str, Any]] | None = None
    beside: Callable[[TokenChunk], dict[str, Any]] = lambda chunk: {}
    """Fields about the prompt in a whole answer, from its first sample."""
    usage: Callable[[], UsageCount] = UsageCount
    silent: bool = False
    """Whether only the prompt is requested: the engine's minimum of one token is omitted."""
    field: str = "prompt"
    """Name of the prompt's field in the request."""
    prompt_ids: Sequence[int] | None = None
    """Token ids of the prompt for a whole answer and for the first event of each sample; None omits them."""

    @property
    def parts(self) -> Sequence[GenerateRequest]:
        """The requests for the engine."""
        return self.requests

    @property
    def about_prompt(self) -> dict[str, Any]:
        return {} if self.prompt_ids is None else {"prompt_token_ids": list(self.prompt_ids)}

    def under_its_name(self) -> AbstractContextManager[None]:
        """Attributes the engine's errors about the prompt to its field."""
        return renaming({"prompt": self.field})

    def index(self, prompt: int, chunk: TokenChunk) -> int:
        return prompt * (self.body.n or 1) + chunk.index

    def hush(self, chunk: TokenChunk) -> None:
        if self.silent:
            chunk.text, chunk.token_ids, chunk.weight_versions = "", [], []
            chunk.logprobs = None if chunk.logprobs is None else []
            chunk.top_logprobs = None if chunk.top_logprobs is None else []
            chunk.finish_reason, chunk.stop_reason = "length", None

    def head(self, streamed: bool) -> dict[str, Any]:
        kind = f"{self.kind}.chunk" if streamed and self.kind == "chat.completion" else self.kind
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}


def ending(body: SamplingBody, chunk: TokenChunk) -> dict[str, Any]:
    """`weight_version` is the version of the newest token; `token_ids` are present only on request."""
    ending: dict[str, Any] = {"finish_reason": chunk.finish_reason, "stop_reason": chunk.stop_reason}
    if chunk.weight_versions:
        ending["weight_version"] = chunk.weight_versions[-1]
    if body.return_token_ids:
        ending["token_ids"] = chunk.token_ids
        ending["weight_versions"] = chunk.weight_versions
    return ending


async def answer(served: ServedModel, request: Request, job: PendingCompletion) -> ASGIApp:
    if job.body.stream_options is not None and not job.body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")
    note_ignored(job.body)
    if job.body.stream:
        events = _events(served, job)
        return EventStream(with_signs(events) if job.body.whole_samples else events)
    return await unless_gone(request.receive, _whole(served, job))


async def _whole(served: ServedModel, job: PendingCompletion) -> Json:
    usage = job.usage()

    async def finish(asked: GenerateRequest) -> list[TokenChunk]:
        chunks = []
        generate = replace(asked, sampling=spread(asked.sampling), whole=True)
        async with aclosing(served.engine.generate(generate)) as stream:
            async for chunk in stream:
                job.hush(chunk)
                usage.count(chunk)
                chunks.append(chunk)
        return best(join(chunks), asked.sampling)

    with served.under_way(job.id, job.parts), job.under_its_name():
        samples = await gather([finish(generate) for generate in job.requests])
    choices = [
        choice
        for prompt, chunks in enumerate(samples)
        for chunk in chunks
        for choice in job.choices(chunk, job.index(prompt, chunk), True)
    ]
    said = {"choices": choices, "usage": usage.body()} | job.beside(samples[0][0])
    return Json(job.head(streamed=False) | said | job.about_prompt)


async def _events(served: ServedModel, job: PendingCompletion) -> AsyncGenerator[bytes, None]:
    usage = job.usage()
    head = job.head(streamed=True)
    options = job.body.stream_options
    with_usage = options is not None and options.include_usage
    along = options is not None and options.continuous_usage_stats
    begun: set[int] = set()
    with served.under_way(job.id, job.parts), job.under_its_name():
        async with aclosing(_merge(served, job)) as stream:
            async for prompt, chunk in stream:
                job.hush(chunk)
                if with_usage or along:
                    usage.count(chunk)
                index = job.index(prompt, chunk)
                if job.first is not None and index not in begun:
                    begun.add(index)
                    begin = head | {"choices": [job.first(index)]} | job.about_prompt
                    yield event_of(_with_usage(begin, with_usage))
                for choice in job.choices(chunk, index, False):
                    event = head | {"choices": [choice]}
                    if along:
                        event["usage"] = usage.body()
                    yield event_of(_with_usage(event, with_usage))
    if with_usage:
        yield event_of(head | {"choices": [], "usage": usage.body()})
    yield DONE


def _with_usage(event: dict[str, Any], with_usage: bool) -> dict[str, Any]:
    return {"usage": None} | event if with_usage else event


async def _merge(served: ServedModel, job: PendingCompletion) -> AsyncGenerator[tuple[int, TokenChunk], None]:
    """Chunks of all prompts in order of arrival."""
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
            # After any error: the reader waits for an item from each prompt.
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
