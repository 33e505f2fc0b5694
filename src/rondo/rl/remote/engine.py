"""A remote engine with the interface of a local one: token IDs in, chunks with weight versions out.

Text is decoded locally by the policy's tokenizer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, cast

from rondo.base.errors import ConfigError, Conflict, InvalidRequest, RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.engine import RunningRequests
from rondo.client.pool import PooledEngine
from rondo.client.types import FinishReason, GenerateRequest, TokenChunk
from rondo.engine.entrypoints.output import SampleReader, TextSource
from rondo.engine.schedule.intake import InputProcessor
from rondo.engine.schedule.request import Request
from rondo.engine.vllm.answers import FINISHED
from rondo.engine.vllm.backend import OutputDelta, VllmRequest
from rondo.rl.remote.offer import Route, WeightOffer
from rondo.rl.remote.servers import FIELD, RondoServer, ServerApi
from rondo.rl.rollout.async_collector import EventLoop
from rondo.text.tokenizer import Tokenizer

log = get_logger(__name__)
LINK_LOST, CORRUPTED, FENCED, DIRECTORY_AWAY = "link_lost", "corrupted", "fenced", "directory_unavailable"
"""Codes of errors: the engine cannot reach the learner; a bucket has another checksum than it was sent with; another
learner has claimed the model; the directory does not answer."""
PROBE = "The policy's tokens, 1 2 3:\n\tdéjà vu — 東京 🙂"
"""A text for which different tokenizers rarely have the same tokens."""


class RemoteEngine(PooledEngine):
    def __init__(
        self,
        server: ServerApi,
        intake: InputProcessor,
        tokenizer: Tokenizer,
        running_requests: RunningRequests = "retain",
    ) -> None:
        """`running_requests`: their treatment at a switch."""
        super().__init__(server.client.base_url)
        self._running_requests = running_requests
        self.server = server
        self.version = 0
        """Version of the last pushed weights."""
        self.transport: Route | None = None
        """Transport of the weights; None before the first push."""
        self.push_lock = asyncio.Lock()
        """Lock of a weight push."""
        self._intake = intake
        self._tokenizer = tokenizer

    async def check(self) -> None:
        """Check that the server supports weight updates and has the policy's tokenizer."""
        await self.server.check(self._running_requests)
        self.version = await self.server.version()
        theirs = await self.server.client.tokenize(PROBE, self.server.model, add_special_tokens=False)
        if theirs["tokens"] != self._tokenizer.encode(PROBE, add_special=False):
            raise ConfigError(
                f"the engine at {self.url} has another tokenizer than the policy: start it with the policy's model.",
                param=FIELD,
            )

    async def push(self, offer: WeightOffer, waits: bool) -> None:
        """Switch the engine to the offered version. The first push selects the transport: the first one that the
        engine accepts."""
        possible = offer.transports(self.url)
        if self.transport in possible:
            possible = (self.transport,)
        refused: list[str] = []
        for transport in possible:
            place = await asyncio.to_thread(offer.place, transport, self.url)
            try:
                await self.server.push(place, offer.version, waits, self._running_requests, offer.permitted)
                self.transport = transport
                return
            except RondoError as error:
                if self._repeats(error):
                    raise Unavailable(error.message, code=error.code) from error
                if isinstance(error, Unavailable | Conflict) and error.code != LINK_LOST:
                    raise
                refused.append(f"{transport}: {error.message}")
                log.warning(
                    "an engine refused a transport of weights",
                    extra={"url": self.url, "transport": transport, "reason": error.message},
                )
        raise ConfigError(
            f"the engine at {self.url} cannot take the policy's weights: {' '.join(refused)} Start it with the "
            "policy's model, or choose another rl.engine.transport.",
            param=FIELD,
        )

    def _repeats(self, error: RondoError) -> bool:
        """Whether the transfer is repeated: a damaged bucket, or a fault in the engine after its transport is known,
        such as a version that a newer one replaced meanwhile."""
        known = self.transport is not None
        return error.code == CORRUPTED or (known and (error.status == 404 or error.status >= 500))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        prompt = list(request.prompt_ids)
        if request.sampling.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs is not supported with a remote engine.", param="prompt_logprobs"
            )
        self._intake.check(request, prompt)
        samples = self._intake.samples(request, prompt, None, time.monotonic())
        readers = [SampleReader(sample, cast(TextSource, self._tokenizer)) for sample in samples]
        query = VllmRequest(request, samples[0], str(self.version), None)
        async with aclosing(self.server.generate(query)) as pieces:
            async for piece in pieces:
                # A greedy request is sent as one sample, which is the result of all samples.
                for reader in readers if query.samples < len(readers) else [readers[piece.index]]:
                    _append(reader.request, piece, self.version)
                    chunk = reader.read(request.read_at_end)
                    if chunk is not None:
                        yield chunk
                if all(reader.done for reader in readers):
                    return

    async def close(self) -> None:
        await self.server.client.close()


def _append(sample: Request, piece: OutputDelta, version: int) -> None:
    """Append a chunk to its sample. `version` is the version of the tokens if the server does not report versions."""
    if sample.finish_reason is not None:
        return
    sample.first_cached = piece.cached or 0
    sample.tokens.extend(piece.tokens)
    sample.logprobs.extend(piece.logprobs or ())
    sample.top_logprobs.extend(piece.top or ())
    own = piece.versions is not None and len(piece.versions) == len(piece.tokens)
    sample.weight_versions.extend(piece.versions if own and piece.versions else [version] * len(piece.tokens))
    if piece.versions is not None and len(piece.versions) == len(sample.weight_versions):
        sample.weight_versions[:] = piece.versions  # vLLM reports the versions of a whole sample at its end
    if piece.finish_reason is not None:
        if piece.stop_reason in sample.sampling.stop_token_ids:
            sample.stop_reason = piece.stop_reason
        sample.finish_reason = (
            cast(FinishReason, piece.finish_reason) if piece.finish_reason in FINISHED else "abort"
        )


class AnnouncedEngine:
    """A `WeightReceiver` for the publisher's threads: an engine that verifies a version while it is written. A failed
    engine keeps its version, and the push repeats the transfer once the version is complete."""

    def __init__(self, engine: RemoteEngine, waits: bool, events: EventLoop) -> None:
        assert isinstance(engine.server, RondoServer)
        self._engine, self._server, self._waits, self._events = engine, engine.server, waits, events

    def start_weight_update(self) -> None:
        self._events.do(self._start())

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        self._events.do(self._server.fetch(update_info, update_info["version"]))

    def finish_weight_update(
        self, weight_version: int | str | None = None, requests: RunningRequests = "retain"
    ) -> None:
        assert weight_version is not None
        self._events.do(self._finish(int(weight_version), requests))

    def abort_weight_update(self) -> None:
        self._events.do(self._abort())

    async def _start(self) -> None:
        await self._engine.push_lock.acquire()
        try:
            await self._server.start()
        except BaseException:
            self._engine.push_lock.release()
            raise

    async def _finish(self, version: int, requests: RunningRequests) -> None:
        await self._server.switch(version, self._waits, requests)
        self._engine.version = version
        self._engine.push_lock.release()

    async def _abort(self) -> None:
        try:
            await self._server.abort()
        finally:
            self._engine.push_lock.release()
