"""A read-only view of a model: log-probabilities of rows, and losses computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.models.decoder import Decoder
from rondo.parallel.config import MemoryConfig
from rondo.parallel.precision import computing_type
from rondo.train.learner.low_precision import LowPrecisionCopy
from rondo.train.learner.passes import RowPasses
from rondo.train.learner.pipelined import passes_over
from rondo.train.losses.sums import Loss, LossOutput, by_document, counted

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

Metrics = dict[str, float]
Number = TypeVar("Number", int, float)


@dataclass
class LossSums:
    """Sums and maxima over the loss outputs of several rows."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)

    def add(self, output: LossOutput) -> None:
        for name, value in {"loss": output.total.detach(), **output.sums}.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        for name, value in output.maxima.items():
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value


class Evaluator:
    def __init__(self, model: Decoder, mesh: Mesh | None = None, memory: MemoryConfig | None = None) -> None:
        """With a mesh, every rank creates an evaluator of the same model, and calls the same methods in the same
        order.
        """
        self.model = model
        self.mesh = mesh
        memory = memory or MemoryConfig()
        self.working: LowPrecisionCopy | None = None
        if mesh is None and (computing := computing_type(model.dtype, memory.precision)) != model.dtype:
            self.working = LowPrecisionCopy(model, computing)
        self.passes = self._passes_over(self.computing, memory)

    def _passes_over(self, model: Decoder, memory: MemoryConfig) -> RowPasses:
        return passes_over(model, self.mesh, memory)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def computing(self) -> Decoder:
        """The model whose layers compute: the trained one, or its copy in a narrower type."""
        return self.model if self.working is None else self.working.model

    def measure(self, batch: Sequence[PackedRow], loss: Loss) -> Metrics:
        """Metrics of the batch as `forward_backward` would return them, without gradients."""
        own = self.count(batch, loss)
        (valid,) = self.totals(own)
        tally = LossSums()
        self.passes.measure(batch, loss, tally.add)
        return self.metrics(own, valid, tally)

    def count(self, batch: Sequence[PackedRow], loss: Loss) -> int:
        """Count of this rank's batch in the loss's units."""
        return sum(counted(loss, row) for row in batch)

    def logprobs(self, batch: Sequence[PackedRow], temperature: float = 1.0) -> list[NDArray[np.float32]]:
        """Log-probabilities of the predictions of each row."""
        return [found.cpu().numpy() for found in self.passes.logprobs(batch, temperature)]

    def document_logprobs(self, batch: Sequence[PackedRow]) -> list[NDArray[np.float32]]:
        """Log-probability of each document of each row: the sum over its predictions, by weight."""
        return [
            by_document(torch.from_numpy(found * row.weights), row.documents).numpy()
            for found, row in zip(self.logprobs(batch), batch, strict=True)
        ]

    def totals(self, *own: Number) -> list[Number]:
        """Each number summed over the ranks that share the batch."""
        said = [own] if self.mesh is None else self.mesh.said(own)
        return [sum(each) for each in zip(*said, strict=True)]

    def metrics(self, own: int, valid: int, tally: LossSums) -> Metrics:
        """Averages over the loss's count in the batch; the loss itself is divided by the count of the step."""
        parts = [
            (
                own,
                {name: float(x) for name, x in tally.sums.items()},
                {name: float(x) for name, x in tally.maxima.items()},
            )
        ]
        if self.mesh is not None:
            parts = self.mesh.said(parts[0])
        count = sum(own for own, _, _ in parts)
        found: Metrics = {}
        for _, of_rank, _ in parts:
            for name, value in of_rank.items():
                found[name] = found.get(name, 0.0) + value / (valid if name == "loss" else count)
        for _, _, of_rank in parts:
            for name, value in of_rank.items():
                found[name] = max(found.get(name, value), value)
        return found | {"tokens": float(valid)}
