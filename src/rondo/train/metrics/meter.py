"""Metrics of a step: throughput, MFU, durations of phases, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rondo.base.telemetry.log import get_logger
from rondo.data.batching.packing import PackedRow
from rondo.parallel.precision import computing_type
from rondo.train.metrics.clock import PhaseTimer, named
from rondo.train.metrics.flops import Flops
from rondo.train.metrics.memory import memory_of
from rondo.train.metrics.peak import peak_of

if TYPE_CHECKING:
    from rondo.train.learner.learner import Learner, Metrics

log = get_logger(__name__)

STEP = ("load", "forward_backward", "optimizer")
"""Phases of a step; other phases, such as a checkpoint, are between two steps."""


class Meter:
    """Tokens and operations are sums over all ranks; times and memory are this rank's."""

    def __init__(self, learner: Learner, peak: float = 0.0) -> None:
        """`peak` is the peak of one device in Tflop/s, if configured."""
        model = learner.model
        self.clock = PhaseTimer(learner.device)
        self._learner = learner
        self._device = learner.device
        self._flops = Flops(model)
        self._ranks = 1 if learner.mesh is None else learner.mesh.world.size
        self._peak = peak_of(learner.device, computing_type(model.dtype, learner.config.precision), peak)
        if self._peak is None:
            log.warning(
                "the peak of this device is not known, so there is no mfu: say it, train.metrics.peak"
            )

    def step(self, rows: Sequence[PackedRow]) -> Metrics:
        """Metrics from the clock and from this rank's `rows` of the step. A checkpoint's time is part of the next
        step.
        """
        phases = self.clock.take()
        seconds = sum(phases.get(phase, 0.0) for phase in STEP)
        found = {"seconds": seconds, **self._rates(rows, seconds)}
        found["loader_share"] = phases.get("load", 0.0) / seconds
        return found | named(phases) | memory_of(self._device)

    def _rates(self, rows: Sequence[PackedRow], seconds: float) -> Metrics:
        own = self._flops.of(rows)
        tokens, full, causal = self._learner.totals(own.tokens, own.full, own.causal)
        found = {
            "input_tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "tokens_per_second_rank": tokens / seconds / self._ranks,
            "flops": full,
            "flops_causal": causal,
        }
        if self._peak is not None:
            most = self._peak.flops * self._ranks * seconds
            found |= {"mfu": full / most, "mfu_causal": causal / most}
            found[f"peak_flops/{self._peak.precision}"] = self._peak.flops
        return found


def perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
