"""Conversion of vLLM's output pieces to samples like the native engine's, with the same readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from rondo.base.errors import RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.types import FinishReason
from rondo.engine.metrics.counters import RequestMetrics
from rondo.engine.schedule.intake import not_finite
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.step import StepOutput
from rondo.engine.vllm.backend import Backend, OutputDelta, VllmRequest

log = get_logger("rondo.engine.vllm")

FINISHED = ("stop", "length")


class AnswerStream:
    """A running request: one task fills its samples and wakes their reader."""

    def __init__(self, samples: list[Request], query: VllmRequest, metrics: RequestMetrics) -> None:
        self.samples = samples
        self.query = query
        self.event = asyncio.Event()
        self.error: RondoError | None = None
        self.pieces = 0
        self._metrics = metrics
        self._pump: asyncio.Task[None] | None = None

    @property
    def left(self) -> int:
        return sum(sample.finish_reason is None for sample in self.samples)

    def start(self, backend: Backend, version: Callable[[], int]) -> None:
        """Starts the task, which takes each piece on arrival, however slow the reader: its tokens are labelled with the
        version in use at that time."""
        self._pump = asyncio.create_task(self._fill(backend, version))

    def end(self, sample: Request, reason: FinishReason) -> None:
        if sample.finish_reason is None:
            sample.finish_reason = reason
            self._metrics.observe_end(sample, time.monotonic())

    def close(self) -> None:
        """Aborts unfinished samples, in vLLM too."""
        for sample in self.samples:
            self.end(sample, "abort")
        if self._pump is not None:
            self._pump.cancel()
        self.event.set()

    async def _fill(self, backend: Backend, version: Callable[[], int]) -> None:
        try:
            await self._read_all(backend, version)
        except RondoError as error:
            self.error = error
        except Exception:
            log.exception("an answer of vLLM's could not be read")
            self.error = Unavailable(
                "vLLM's response could not be parsed; the cause is in the log.", code="engine_failed"
            )
        if self.error is not None:
            for sample in self.samples:
                sample.error = self.error
                self.end(sample, "abort")
        self.event.set()

    async def _read_all(self, backend: Backend, version: Callable[[], int]) -> None:
        ended, last = 0, None
        async with aclosing(backend.stream(self.query)) as pieces:
            async for piece in pieces:
                ended += piece.finish_reason is not None
                if piece.finish_reason is not None and ended == self.query.samples:
                    last = piece  # vLLM reports the number of cached prompt tokens after it
                    continue
                for sample in self._of(piece):
                    self._append(sample, piece, version())
                if piece.finish_reason is not None:
                    self._finish(self.samples[piece.index], piece)
                self.event.set()
        if last is None:
            raise Unavailable("vLLM ended the answer before its end. Ask again.", code="engine_failed")
        for sample in self._of(last):
            self._append(sample, last, version())
            self._finish(sample, last)

    def _of(self, piece: OutputDelta) -> list[Request]:
        """The samples that the piece belongs to."""
        return self.samples if self.query.samples < len(self.samples) else [self.samples[piece.index]]

    def _append(self, sample: Request, piece: OutputDelta, version: int) -> None:
        self.pieces += 1
        if piece.cached is not None:
            # A prompt whose log-probabilities are requested was computed for them.
            self.samples[0].first_cached = piece.cached if sample.scores is None else 0
        if piece.prompt_logprobs is not None and sample.scores is not None:
            sample.scores.set_all(piece.prompt_logprobs)
        if piece.vector is not None:
            self._set_vector(sample, piece.vector)
        if not piece.tokens or sample.finish_reason is not None:
            return
        sample.tokens.extend(piece.tokens)
        if piece.logprobs is not None:
            sample.logprobs.extend(piece.logprobs)
        if piece.top is not None and sample.sampling.logprobs:
            sample.top_logprobs.extend(piece.top)
        # Last: a reader counts tokens by this list.
        sample.weight_versions.extend([version] * len(piece.tokens))
        self._count(sample, [sample], len(piece.tokens) - 1)

    def _set_vector(self, sample: Request, vector: NDArray[np.float32]) -> None:
        if not np.isfinite(vector).all():
            raise not_finite()
        sample.vector = torch.tensor(vector)
        self._count(sample, [], 0)

    def _count(self, sample: Request, advanced: list[Request], extra: int) -> None:
        now = time.monotonic()
        admitted = [] if sample.started_at else [sample]
        sample.started_at = sample.started_at or now
        self._metrics.observe(StepOutput(advanced, [], admitted, extra), now)

    def _finish(self, sample: Request, piece: OutputDelta) -> None:
        if sample.finish_reason is not None:
            return
        if piece.versions is not None and len(piece.versions) == len(sample.weight_versions):
            sample.weight_versions[:] = piece.versions
        if piece.stop_reason in sample.sampling.stop_token_ids:
            sample.stop_reason = piece.stop_reason
        self.end(
            sample, cast(FinishReason, piece.finish_reason) if piece.finish_reason in FINISHED else "abort"
        )
