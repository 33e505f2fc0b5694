"""vLLM behind the `Engine` protocol, with the native engine's requests, errors, chunks, versions and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from rondo.base.errors import (
    ConfigError,
    Conflict,
    InvalidRequest,
    Overloaded,
    RondoError,
    Unavailable,
)
from rondo.base.telemetry.account import current
from rondo.base.telemetry.log import get_logger
from rondo.client.engine import PauseMode, RunningRequests, WeightState
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.output import SampleReader, TextSource
from rondo.engine.metrics.counters import record_request
from rondo.engine.schedule.intake import InputProcessor
from rondo.engine.vllm.adapters import VllmAdapters
from rondo.engine.vllm.answers import AnswerStream
from rondo.engine.vllm.backend import Backend, VllmRequest
from rondo.engine.vllm.metrics import VllmMetrics
from rondo.engine.weights.sleep import TAGS, check_level, check_tags
from rondo.engine.weights.weight_reload import check_version
from rondo.engine.weights.weight_update import WeightUpdate
from rondo.models import ModelConfig

log = get_logger("rondo.engine.vllm")

QUIET_SECONDS = 0.02
"""Time without output after which all output of a paused vLLM has arrived."""


class VllmEngine:
    def __init__(
        self,
        config: EngineConfig,
        model: ModelConfig,
        folder: Path,
        max_model_len: int,
        eos_ids: tuple[int, ...],
        tokenizer: TextSource | None,
        model_name: str,
        adapters: VllmAdapters,
    ) -> None:
        """`backend` must be set before the first request."""
        self.backend: Backend
        self.config = config
        self.model = model
        self.max_model_len = max_model_len
        self.max_queued = config.max_queued
        self.max_running: int | None = config.max_num_seqs
        self.tokenizer = tokenizer
        self.metrics = VllmMetrics(self, model_name)
        self.folder = folder
        self.weight_version = 0
        self.is_paused = False
        self._asleep: frozenset[str] = frozenset()
        self._update = WeightUpdate()
        self._draining = False
        self._failure: RondoError | None = None
        self._streams: dict[str, AnswerStream] = {}
        self._adapters = adapters
        self._epoch = 0
        self._intake = InputProcessor(config, max_model_len, model.vocab_size, eos_ids)

    @property
    def failure(self) -> RondoError | None:
        return self._failure

    @property
    def ready(self) -> bool:
        closed = self._failure or self._draining or self.is_paused or self._asleep or self._update.updating
        return not closed and not self._update.torn and self.backend.up

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    @property
    def in_flight(self) -> int:
        return sum(
            sample.finish_reason is None
            for stream in list(self._streams.values())  # metrics are read from another thread
            for sample in stream.samples
        )

    def fail(self, error: RondoError) -> None:
        """Records that vLLM has ended for good; may be called from any thread."""
        self._failure = self._failure or error

    def weight_state(self) -> WeightState:
        return self._update.state("weights" in self._asleep)

    def load(self) -> tuple[int, int]:
        """Estimated number of running and of waiting samples: vLLM does not report which samples it computes, so that
        samples beyond `max_num_seqs` count as waiting."""
        in_flight = self.in_flight
        running = min(in_flight, self.config.max_num_seqs)
        return running, in_flight - running

    def kv_load(self) -> dict[str, float]:
        """Unknown: vLLM reports its KV cache in its metrics."""
        return {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Streams the request's samples. Leaving the iterator early aborts the request."""
        account, stream = current(), self._open(request)
        try:
            readers = [SampleReader(sample, self.tokenizer) for sample in stream.samples]
            while readers:
                await stream.event.wait()
                stream.event.clear()
                for reader in readers:
                    chunk = reader.read(request.read_at_end and stream.error is None)
                    if chunk is not None and (chunk.token_ids or stream.error is None):
                        if reader.done and reader.request.finish_reason is None:  # at a stop string
                            stream.end(reader.request, "stop")
                        yield chunk
                if stream.error is not None:
                    raise stream.error
                readers = [reader for reader in readers if not reader.done]
        finally:
            stream.close()
            self._streams.pop(request.id, None)
            if account is not None:
                record_request(account, request, stream.samples, self.metrics.model_name)

    async def abort(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.close()

    async def pause(self, mode: PauseMode = "keep") -> None:
        try:
            await self.backend.pause(mode)
        except asyncio.CancelledError:
            # The caller that waited for the requests to finish was cancelled.
            await asyncio.shield(self.backend.resume())
            raise
        self.is_paused = True

    async def resume(self) -> None:
        await self.backend.resume()
        self.is_paused = False

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        check_level(level)
        if not self.config.device.startswith("cuda"):
            raise ConfigError(
                "vLLM supports sleep only on a GPU. On a GPU, set engine.device to cuda.",
                param="device",
            )
        await self.backend.sleep(level, mode)
        self._asleep = frozenset(TAGS)
        if level == 2:
            self._update.lose()

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        wanted = self._asleep & check_tags(tags)
        if not wanted:
            return
        await self.backend.wake(sorted(wanted))
        self._asleep -= wanted
        if "weights" in wanted and self._update.torn:
            await self.backend.transfer(str(self.folder), self.weight_version)
            self._update.restore()

    def adapters(self) -> Sequence[str]:
        return self._adapters.names()

    def has_adapter(self, name: str) -> bool:
        return name in self._adapters

    async def load_adapter(self, name: str, path: str, replace: bool = False) -> None:
        await self._adapters.load(self.backend, name, path, replace)

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter; requests that use it continue."""
        await self._adapters.unload(self.backend, name)

    async def check_weights(self, path: Path, version: int | None) -> None:
        self._check_update(version)
        await asyncio.to_thread(check_version, path, self.model)

    async def update_weights(self, path: Path, version: int, requests: RunningRequests = "retain") -> None:
        """vLLM stops between two steps while its workers read the folder. If one fails, all read the
        old weights again."""
        if requests == "recompute":
            raise ConfigError(
                "vLLM does not compute the KV cache of running requests again: use retain or abort.",
                param="requests",
            )
        await self.check_weights(path, version)
        self._check_update(version)
        self._update.stage()
        with self.metrics.operation("update_weights"):
            # A cancelled caller leaves the transfer running; the update ends with the transfer.
            await asyncio.shield(self._transfer(path, version, requests))

    async def start_weight_update(self) -> None:
        raise ConfigError(
            "vLLM's weights are in its own memory, and cannot be written in place: use update_weights, with a folder.",
            param="backend",
        )

    async def finish_weight_update(self, version: int) -> None:
        raise Conflict("no weight update is in progress.")

    async def reset_prefix_cache(self) -> None:
        """Empties vLLM's prefix cache and changes the salt, so that cached blocks are never hit again."""
        self._epoch += 1
        await self.backend.reset_prefix_cache()

    async def drain(self, seconds: float) -> None:
        self._draining = True
        until = time.monotonic() + seconds
        while self._streams and time.monotonic() < until and self._failure is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if self._streams:
            log.warning("requests were cut off while draining", extra={"seconds": seconds})
        for stream in list(self._streams.values()):
            stream.close()
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        self.fail(Unavailable("the engine was stopped.", code="shutting_down"))
        self.backend.stop()

    def _open(self, request: GenerateRequest) -> AnswerStream:
        self._check_open(request)
        prompt = list(request.prompt_ids)
        self._intake.check(request, prompt)
        in_flight = self.in_flight
        if in_flight + request.sampling.n - self.config.max_num_seqs > self.max_queued:
            self.metrics.rejected += 1
            raise Overloaded(
                f"{in_flight} samples are running or waiting, and at most {self.max_queued} may wait "
                "(engine.max_queued). Try again later.",
                code="queue_full",
            )
        adapter = self._adapters.find(request.adapter)
        samples = self._intake.samples(request, prompt, None, time.monotonic())
        salt = f"{self.weight_version}.{self._epoch}.{adapter.number if adapter else 0}"
        if request.cache_salt is not None:
            salt += f".{request.cache_salt}"
        stream = AnswerStream(samples, VllmRequest(request, samples[0], salt, adapter), self.metrics)
        self._streams[request.id] = stream
        stream.start(self.backend, lambda: self.weight_version)
        return stream

    def _check_open(self, request: GenerateRequest) -> None:
        if self._failure is not None:
            raise self._failure
        if self._draining:
            raise Unavailable("the engine is shutting down.", code="shutting_down")
        if self._update.torn:
            raise Unavailable(
                "vLLM has no whole version of the weights: finish an update first.", code="torn"
            )
        if request.id in self._streams:
            raise Conflict(f"a request with the id {request.id!r} is running already.", param="id")
        params = request.sampling
        if (request.pooling is not None) != (self.config.vllm.runner == "pooling"):
            raise _other_runner(request)
        if params.bad_word_ids and not params.bad_words:
            raise InvalidRequest("vLLM takes bad_words as texts only.", param="bad_words")
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer: use stop_token_ids.", param="stop")
        query = params.logprobs is not None or params.prompt_logprobs is not None
        if query and params.logprobs_mode == "scaled" and params.temperature not in (0, 1):
            raise InvalidRequest(
                "vLLM gives log-probabilities before the temperature: logprobs_mode must be 'raw', or temperature 1.",
                param="logprobs_mode",
            )

    async def _transfer(self, folder: Path, version: int, requests: RunningRequests) -> None:
        try:
            await self.backend.pause("abort" if requests == "abort" else "keep")
            try:
                await self._quiet()
                await self._replace(folder, version)
            finally:
                if not self.is_paused:
                    with suppress(Unavailable):
                        await self.backend.resume()
        finally:
            self._update.abort()

    async def _replace(self, folder: Path, version: int) -> None:
        """Transfers the new weights, or the old ones again after an error. If that fails too, the weights stay torn."""
        try:
            await self.backend.transfer(str(folder), version)
        except RondoError:
            self._update.lose()
            with suppress(Unavailable):  # vLLM has ended, and restarts with the old weights
                await self.backend.transfer(str(self.folder), self.weight_version)
            self._update.restore()
            raise
        self._update.finish(version, self.weight_version)
        self.folder, self.weight_version = folder, version

    async def _quiet(self) -> None:
        """Waits until all output computed before the pause has arrived."""
        seen: int | None = None
        while seen != (pieces := sum(stream.pieces for stream in self._streams.values())):
            seen = pieces
            await asyncio.sleep(QUIET_SECONDS)

    def _check_update(self, version: int | None) -> None:
        self._update.check("weights" in self._asleep, version, self.weight_version)


def _other_runner(request: GenerateRequest) -> InvalidRequest:
    """The error for a generation request to a pooling vLLM, or the reverse: one vLLM never serves both."""
    if request.pooling is None:
        message = (
            "this vLLM gives vectors, not answers: serve the model with engine.vllm.runner=generate too."
        )
    else:
        message = "this vLLM gives answers, not vectors: serve the model with engine.vllm.runner=pooling too."
    return InvalidRequest(message, param="prompt", code="not_supported")
