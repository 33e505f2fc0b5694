"""Engines behind URLs as one: who has least to do is asked, and what is lost with an engine is asked anew.

An engine that has gone is waited for. It comes back with the weights that it was started with, and gets the newest
before it is asked again; what it said meanwhile is told by its version, and forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from rondo.base.errors import Conflict, Overloaded, RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.rl.remote.engine import RemoteEngine

log = get_logger(__name__)

LOOK_SECONDS = 0.2
"""How often an engine is looked for that has gone, or has no room."""


class EnginePool:
    """Used from one event loop."""

    def __init__(self, engines: Sequence[RemoteEngine], max_model_len: int, wait: float, waits: bool) -> None:
        """`wait`: for so many seconds an engine may be gone. `waits`: a push lets what has begun end first."""
        self.engines, self.max_model_len = engines, max_model_len
        self.version = 0
        """The newest: what all engines have, or are just being given."""
        self.counts: Counter[str] = Counter()
        self._folder = Path()
        self._wait, self._waits = wait, waits
        self._coming: dict[str, asyncio.Task[None]] = {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Each sample whole: of one that was begun nothing has been said that could not be said anew."""
        ended: set[int] = set()
        since: float | None = None
        """From when on it was refused or lost, again and again."""
        while len(ended) < request.sampling.n:
            engine = await self._free()
            engine.under_way += 1
            try:
                async with aclosing(self._whole(engine, request)) as samples:
                    async for sample in samples:
                        if sample.index not in ended:
                            ended.add(sample.index)
                            since = None
                            yield sample
                if len(ended) < request.sampling.n:
                    raise Unavailable(f"the engine at {engine.url} ended an answer before its end.")
            except (Overloaded, Unavailable) as error:
                now = asyncio.get_running_loop().time()
                since = now if since is None else since
                if now - since > self._wait:
                    raise
                if isinstance(error, Unavailable):
                    self.counts["asked_again"] += 1
                    self._lose(engine, error)
                await asyncio.sleep(LOOK_SECONDS)
            finally:
                engine.under_way -= 1

    async def push(self, version: int, folder: Path) -> None:
        """Returns when all engines have it."""
        self.version, self._folder = version, folder
        await asyncio.gather(*map(self._give, self.engines))

    async def close(self) -> None:
        for task in self._coming.values():
            task.cancel()
        await asyncio.gather(*self._coming.values(), return_exceptions=True)
        for engine in self.engines:
            with contextlib.suppress(Exception):
                await engine.close()

    async def _whole(
        self, engine: RemoteEngine, request: GenerateRequest
    ) -> AsyncGenerator[TokenChunk, None]:
        """The engine's samples, each as it has ended."""
        had, known = engine.version, dict[int, TokenChunk]()
        async with aclosing(engine.generate(replace(request, whole=True))) as chunks:
            async for chunk in chunks:
                sample = known.setdefault(chunk.index, chunk)
                if sample is not chunk:
                    sample.extend(chunk)
                if sample.finish_reason is None:
                    continue
                versions = sample.weight_versions
                if versions and min(versions) < had:
                    raise Unavailable(f"the engine at {engine.url} has lost version {had} of the weights.")
                if versions and max(versions) > self.version:
                    raise Conflict(
                        f"the engine at {engine.url} has version {max(versions)} of the weights, pushed by another "
                        "process: an engine takes weights from one learner only."
                    )
                yield sample

    async def _free(self) -> RemoteEngine:
        """Of those that are there the one with the least to do; waits for one."""
        while True:
            for task in self._coming.values():
                if task.done():
                    task.result()
            there = [engine for engine in self.engines if engine.up]
            if there:
                return min(there, key=lambda engine: engine.under_way)
            await asyncio.sleep(LOOK_SECONDS)

    def _lose(self, engine: RemoteEngine, error: RondoError) -> None:
        """Looks after it, unless somebody does."""
        self._gone(engine, error)
        task = self._coming.get(engine.url)
        if task is None or task.done():
            self._coming[engine.url] = asyncio.create_task(self._give(engine))

    def _gone(self, engine: RemoteEngine, error: RondoError) -> None:
        if engine.up:
            engine.up = False
            self.counts["lost"] += 1
            log.warning("an engine is gone", extra={"url": engine.url, "reason": error.message})

    async def _give(self, engine: RemoteEngine) -> None:
        """The newest weights, as soon as it is there to take them."""
        loop = asyncio.get_running_loop()
        async with engine.giving:
            deadline = loop.time() + self._wait
            while not (engine.up and engine.version == self.version):
                version, folder = self.version, self._folder
                try:
                    if await engine.dialect.version() != version:
                        await engine.push(folder, version, self._waits)
                    engine.version, engine.up = version, True
                except (Unavailable, Conflict) as error:
                    self._gone(engine, error)
                    if loop.time() > deadline:
                        raise Unavailable(
                            f"the engine at {engine.url} has not come back for {self._wait:g} s (rl.engine.wait): "
                            f"{error.message} Restart the engine, then this command: it resumes from the last "
                            "checkpoint."
                        ) from error
                    await asyncio.sleep(LOOK_SECONDS)
