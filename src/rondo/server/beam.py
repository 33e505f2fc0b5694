"""An answer by beam search, from whatever engine: in each step one short request a beam, all of them sent together.

The prefix cache has what a beam was computed with, but for the last tokens, which fill no block. Between two steps
nothing is held: others take their turns, and a search that waits keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from rondo.base.account import Account, current
from rondo.base.errors import Overloaded
from rondo.client.beam import Beam, BeamSearch, Scored
from rondo.client.beam_fields import beams_of
from rondo.client.openai import SamplingBody
from rondo.client.types import GenerateRequest, SamplingParams, TokenChunk
from rondo.server.http import gather
from rondo.server.served import Served
from rondo.server.shapes import join

RETRY_SECONDS = 0.02
"""A search that has begun is not refused: while the queue is full, it asks again so often."""


class Beams:
    """In the engine's place, for one answer: gives the best beams, as samples that are whole."""

    def __init__(self, served: Served, body: SamplingBody, answer_id: str) -> None:
        self._served = served
        self._body = body
        self._answer_id = answer_id

    def parts(self, request: GenerateRequest) -> list[GenerateRequest]:
        """What the engine is asked in its place, again and again: one a beam."""
        return [replace(request, id=f"{request.id}-{beam}") for beam in range(self._body.n or 1)]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        params = beams_of(self._body, request.sampling.max_tokens)
        search = BeamSearch(request.prompt_ids, params, self._served.eos_ids, self._served.max_model_len)
        outer, own = current(), Account(request.id)
        beams: list[Beam] = []
        try:
            with own.open():
                cached = await self._run(search, request, own)
            beams = search.best()
        finally:
            if outer is not None:
                _tell(outer, own, request, beams)
        for index, beam in enumerate(beams):
            yield self._chunk(request, index, beam, cached)

    async def _run(self, search: BeamSearch, request: GenerateRequest, account: Account) -> int:
        """Returns how much of the prompt was cached."""
        begun, cached = False, 0
        sampling = search.sampling(request.sampling.logprobs or 0)
        parts = [replace(part, sampling=sampling) for part in self.parts(request)]
        while search.beams:
            asked = [replace(part, prompt_ids=beam.tokens) for part, beam in zip(parts, search.beams)]
            chunks = await gather([self._next(each, begun) for each in asked])
            del account.samples[1:-1]
            if not begun:
                begun, cached = True, chunks[0].cached_tokens
            if self._answer_id in self._served.aborted or any(map(_is_cut, chunks)):
                search.abort()
            else:
                search.take([_scored(chunk) for chunk in chunks])
        return cached

    async def _next(self, request: GenerateRequest, begun: bool) -> TokenChunk:
        while True:
            try:
                async with aclosing(self._served.engine.generate(request)) as stream:
                    return join([chunk async for chunk in stream])[0]
            except Overloaded:
                if not begun:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    def _chunk(self, request: GenerateRequest, index: int, beam: Beam, cached: int) -> TokenChunk:
        sampling, prompt = request.sampling, len(request.prompt_ids)
        ids = beam.tokens[prompt:]
        return TokenChunk(
            request_id=request.id,
            index=index,
            token_ids=ids,
            weight_versions=[scored.weight_version for scored in beam.scored],
            logprobs=None if sampling.logprobs is None else beam.logprobs,
            top_logprobs=[each.top[: sampling.logprobs] for each in beam.scored]
            if sampling.logprobs
            else None,
            text=self._text(ids, sampling),
            finish_reason=beam.finish_reason,
            stop_reason=beam.stop_reason,
            prompt_tokens=prompt,
            cached_tokens=cached,
        )

    def _text(self, ids: list[int], sampling: SamplingParams) -> str:
        detokenizer = self._served.prompts.tokenizer.detokenizer(
            sampling.skip_special_tokens, keep=sampling.keep_special_tokens
        )
        return detokenizer.push(ids) + detokenizer.flush()


def _scored(chunk: TokenChunk) -> Scored:
    assert chunk.top_logprobs is not None
    return Scored(chunk.top_logprobs[0], chunk.weight_versions[0])


def _is_cut(chunk: TokenChunk) -> bool:
    return chunk.finish_reason == "abort" or not chunk.token_ids


def _tell(outer: Account, own: Account, request: GenerateRequest, beams: list[Beam]) -> None:
    """The steps as what they are to the client: an answer for each beam; one that ended, where there are none."""
    if not own.samples:
        return
    first, last, params = own.samples[0], own.samples[-1], request.sampling
    ends = [(len(beam.logprobs), str(beam.finish_reason)) for beam in beams] or [(0, last.finish_reason)]
    for tokens, reason in ends:
        whole = replace(first, id=request.id, output_tokens=tokens, finish_reason=reason, last=last.last)
        outer.samples.append(
            replace(whole, n=params.n, max_tokens=params.max_tokens, temperature=params.temperature)
        )
