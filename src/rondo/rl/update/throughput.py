"""Model FLOPs utilization (MFU) and memory of a step's training."""

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
    """FLOPs of the policy alone, as a mean over ranks; critic, reference and reward model are not counted."""

    learner: Learner
    peak: float
    """Peak throughput in Tflop/s, if configured."""
    _work: RowFlops = field(default_factory=lambda: RowFlops(0.0, 0.0, 0.0))

    def counts(self, rows: Sequence[PackedRow], epochs: int) -> None:
        """Count the FLOPs of a step's rows and epochs. All ranks must call this, each with its own rows."""
        own, mesh = Flops(self.learner.model).of(rows), self.learner.mesh
        ranks = 1 if mesh is None else mesh.world.size
        work = self.learner.totals(own.tokens, own.full, own.causal)
        self._work = RowFlops(*(epochs * each / ranks for each in work))

    def metrics(self, seconds: float) -> Metrics:
        """Metrics of training that took `seconds`. Without rows, as in preference training, only memory is reported."""
        found = memory_of(self.learner.device)
        dtype = computing_type(self.learner.model.dtype, self.learner.config.precision)
        peak = peak_of(self.learner.device, dtype, self.peak) if self._work.tokens else None
        if peak is not None:
            most = peak.flops * seconds
            found |= {"mfu": self._work.full / most, "mfu_causal": self._work.causal / most}
            found[f"peak_flops/{peak.precision}"] = peak.flops
        return found
