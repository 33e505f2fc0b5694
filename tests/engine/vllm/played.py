"""A vLLM that is played: it sends given pieces, and fails as it is told."""

import asyncio

from rondo.base.errors import (
    InvalidRequest,
)
from rondo.client.types import SamplingParams
from rondo.engine.vllm.adapters import VllmAdapters
from rondo.engine.vllm.engine import VllmEngine

PARAMS = SamplingParams(max_tokens=8, temperature=0, detokenize=False)


class Played:
    """Sends what it was given, one piece after another, and waits at a None until it is let go."""

    def __init__(self, *given):
        self.given = list(given)
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.asked = []
        self.done = []
        self.refuses = []
        self.left = 0
        self.up = True

    async def stream(self, asked):
        self.asked.append(asked)
        self.begun.set()
        try:
            for piece in self.given:
                if piece is None:
                    await self.go.wait()
                elif isinstance(piece, Exception):
                    raise piece
                else:
                    yield piece
        finally:
            self.left += 1

    def figures(self):
        return ()

    def __getattr__(self, verb):
        async def do(*given):
            self.done.append((verb, *given))
            if (verb, *given) in self.refuses:
                raise InvalidRequest("no.")

        return do


def make(config, model, folder, ends=(), tokenizer=None):
    return VllmEngine(config, model, folder, 64, ends, tokenizer, "tiny", VllmAdapters(config))


def run(engine, backend, work):
    async def main():
        engine.backend = backend
        return await asyncio.wait_for(work(), 20)

    return asyncio.run(main())
