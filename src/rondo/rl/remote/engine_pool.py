"""A pool of remote engines: requests are sent to the least loaded engine and retried after a failure.

The pool waits for a lost engine. After a restart an engine has its initial weights; it receives the newest weights
before it serves requests again, and samples with outdated weight versions are discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from rondo.base.errors import Conflict, Overloaded, RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.pool import LeastLoaded
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.rl.remote.engine import DIRECTORY_AWAY, FENCED, AnnouncedEngine, RemoteEngine
from rondo.rl.remote.offer import WeightOffer
from rondo.rl.remote.servers import RondoServer
from rondo.rl.rollout.async_collector import EventLoop

log = get_logger(__name__)

POLL_SECONDS = 0.2
"""Seconds between two attempts to reach a lost engine or to queue a request."""


class EnginePool:
    """Engines behind one interface; not thread-safe, for use in one event loop."""

    def __init__(self, engines: Sequence[RemoteEngine], max_model_len: int, wait: float, waits: bool) -> None:
        """`wait`: seconds that an engine may be unavailable. `waits`: a push waits for running requests."""
        self.engines, self.max_model_len = engines, max_model_len
        self.version = 0
        """The newest version, which all engines have or are receiving."""
        self.counts: Counter[str] = Counter()
        self._offer: WeightOffer | None = None
        self._balance = LeastLoaded()
        self._wait, self._waits = wait, waits
        self._recovering: dict[str, asyncio.Task[None]] = {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield only complete samples, so that a partial sample of a lost engine can be generated again."""
        ended: set[int] = set()
        since: float | None = None
        """Time of the first of consecutive failed attempts."""
        while len(ended) < request.sampling.n:
            engine, aborted = await self._available(), False
            version = engine.version
            self._balance.begin(engine, request.sampling.n)
            try:
                async with aclosing(self._complete_samples(engine, request)) as samples:
                    async for sample in samples:
                        since = None
                        if sample.finish_reason == "abort" and self.version > version:
                            aborted = True  # by a push: it is sampled again with the newest weights
                        elif sample.index not in ended:
                            ended.add(sample.index)
                            yield sample
                if aborted:
                    self.counts["asked_again"] += 1
                elif len(ended) < request.sampling.n:
                    raise Unavailable(f"the engine at {engine.url} ended an answer before its end.")
            except (Overloaded, Unavailable) as error:
                now = asyncio.get_running_loop().time()
                since = now if since is None else since
                if now - since > self._wait:
                    raise
                if isinstance(error, Unavailable):
                    self.counts["asked_again"] += 1
                    self._recover(engine, error)
                await asyncio.sleep(POLL_SECONDS)
            finally:
                self._balance.end(engine, request.sampling.n)

    async def push(self, offer: WeightOffer) -> None:
        """Push weights, and return when all engines have them."""
        self.version, self._offer = offer.version, offer
        await asyncio.gather(*map(self._push_when_reachable, self.engines))

    def announce(self, version: int, events: EventLoop) -> dict[str, AnnouncedEngine]:
        """Engines that follow the segment of the next version while it is written. vLLM does not: it is paused while it
        fetches a version."""
        self.version = version
        return {
            engine.url: AnnouncedEngine(engine, self._waits, events)
            for engine in self.engines
            if engine.healthy and engine.transport == "shm" and isinstance(engine.server, RondoServer)
        }

    async def close(self) -> None:
        for task in self._recovering.values():
            task.cancel()
        await asyncio.gather(*self._recovering.values(), return_exceptions=True)
        for engine in self.engines:
            with contextlib.suppress(Exception):
                await engine.close()

    async def _complete_samples(
        self, engine: RemoteEngine, request: GenerateRequest
    ) -> AsyncGenerator[TokenChunk, None]:
        """The engine's samples, each as soon as it ends."""
        version, samples_by_index = engine.version, dict[int, TokenChunk]()
        async with aclosing(engine.generate(replace(request, whole=True))) as chunks:
            async for chunk in chunks:
                sample = samples_by_index.setdefault(chunk.index, chunk)
                if sample is not chunk:
                    sample.extend(chunk)
                if sample.finish_reason is None:
                    continue
                versions = sample.weight_versions
                if versions and min(versions) < version:
                    raise Unavailable(
                        f"the engine at {engine.url} has lost version {version} of the weights."
                    )
                if versions and max(versions) > self.version:
                    raise Conflict(
                        f"the engine at {engine.url} has version {max(versions)} of the weights, pushed by another "
                        "process: an engine takes weights from one learner only."
                    )
                yield sample

    async def _available(self) -> RemoteEngine:
        """The least loaded available engine; waits if there is none."""
        while True:
            for task in self._recovering.values():
                if task.done():
                    task.result()
            there = [engine for engine in self.engines if engine.healthy]
            if there:
                return self._balance.choose(there)
            await asyncio.sleep(POLL_SECONDS)

    def _recover(self, engine: RemoteEngine, error: RondoError) -> None:
        """Mark an engine as lost, and start its recovery unless the recovery is running."""
        self._mark_lost(engine, error)
        task = self._recovering.get(engine.url)
        if task is None or task.done():
            self._recovering[engine.url] = asyncio.create_task(self._push_when_reachable(engine))

    def _mark_lost(self, engine: RemoteEngine, error: RondoError) -> None:
        if engine.healthy:
            engine.healthy = False
            self.counts["lost"] += 1
            log.warning("an engine is gone", extra={"url": engine.url, "reason": error.message})

    async def _push_when_reachable(self, engine: RemoteEngine) -> None:
        """Push the newest weights as soon as the engine is reachable; raise Unavailable after `wait` seconds."""
        loop = asyncio.get_running_loop()
        async with engine.push_lock:
            deadline = loop.time() + self._wait
            while True:
                offer = self._offer
                assert offer is not None
                if engine.healthy and engine.version >= offer.version:
                    return
                try:
                    version = await engine.server.version()
                    if version not in (offer.version, self.version):
                        await engine.push(offer, self._waits)
                        version = offer.version
                    engine.version, engine.healthy = version, True
                except (Unavailable, Conflict) as error:
                    if error.code in (FENCED, DIRECTORY_AWAY):
                        raise
                    self._mark_lost(engine, error)
                    if loop.time() > deadline:
                        raise Unavailable(
                            f"the engine at {engine.url} has not come back for {self._wait:g} s (rl.engine.wait): "
                            f"{error.message} Restart the engine, then this command: it resumes from the last "
                            "checkpoint."
                        ) from error
                    await asyncio.sleep(POLL_SECONDS)
