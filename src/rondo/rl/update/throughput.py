"""How much of what the device could multiply a step's training did, and how much memory the process has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rondo.data.batching.packing import PackedRow
from rondo.parallel.precision import computing_type
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.metrics.flops import Flops, RowFlops
from rondo.train.metrics.memory import memory_of
from rondo.train.metrics.peak import peak_of


@dataclass
class Effort:
    """Of the policy alone: what a critic, a reference or a reward model computes is not counted."""

    learner: Learner
    peak: float
    """Tflop/s, where it is to be told."""
    _work: RowFlops = field(default_factory=lambda: RowFlops(0.0, 0.0, 0.0))

    def counts(self, rows: Sequence[PackedRow], epochs: int) -> None:
        """What a step trains on, and how often."""
        work = Flops(self.learner.model).of(rows)
        self._work = RowFlops(epochs * work.tokens, epochs * work.full, epochs * work.causal)

    def metrics(self, seconds: float) -> Metrics:
        """Of a training that took so long. Without rows, as in preference training, only memory is told."""
        found = memory_of(self.learner.device)
        dtype = computing_type(self.learner.model.dtype, self.learner.config.precision)
        peak = peak_of(self.learner.device, dtype, self.peak) if self._work.tokens else None
        if peak is not None:
            most = peak.flops * seconds
            found |= {"mfu": self._work.full / most, "mfu_causal": self._work.causal / most}
            found[f"peak_flops/{peak.precision}"] = peak.flops
        return found
