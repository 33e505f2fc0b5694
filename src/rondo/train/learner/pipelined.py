"""Passes over pipeline stages: a step's rows are the microbatches of a pipeline's schedule.

The hidden states between stages have one length, so rows are padded to the longest one of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.models.decoder import Decoder
from rondo.parallel.config import MemoryConfig
from rondo.parallel.layout.cut import microbatches, pieces_of, stage_of
from rondo.parallel.pipeline.stage import StageInputs
from rondo.parallel.precision import computing_type, kept_type
from rondo.parallel.ranks.mesh import Mesh
from rondo.train.learner.passes import NOTHING, Passes, predictions
from rondo.train.losses.auxiliary import ExpertUse
from rondo.train.losses.sums import Loss, LossOutput, needs_entropy, needs_top1


def passes_over(model: Decoder, mesh: Mesh | None, memory: MemoryConfig) -> Passes:
    """The passes for the placement of the model's parts."""
    if mesh is None or mesh.degrees.pp == 1:
        return Passes(model, mesh, memory)
    return Pipelined(model, mesh, memory)


class Pipelined(Passes):
    def __init__(self, model: Decoder, mesh: Mesh, memory: MemoryConfig) -> None:
        from rondo.parallel.pipeline.pipeline import Pipeline  # its schedules import PyTorch's compiler

        computing = computing_type(kept_type(model.dtype, memory), memory.precision)
        super().__init__(model, mesh, memory)
        layout = mesh.degrees.config
        self._layout = layout
        self._last = stage_of(layout, pieces_of(layout) - 1)
        self._stages = mesh
        self._pipeline = Pipeline(model, self.pieces, mesh, computing)

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        return self._pipeline.counted_elsewhere

    def forward_backward(
        self,
        rows: Sequence[PackedRow],
        loss: Loss,
        valid: float,
        temperature: float,
        done: Callable[[LossOutput], None],
    ) -> None:
        outputs: list[LossOutput] = []
        uses = [self._use(row, loss, valid) for row in rows]
        top1 = needs_top1(loss)

        def finish(i: int, scored: Tensor) -> Tensor:
            if i >= len(rows):
                return scored.sum() * 0.0
            output = loss(predictions(rows[i], scored, self._device, with_top1=top1))
            outputs.append(without_graph(output))
            return output.total / valid

        microbatches = self._microbatches(rows, temperature, needs_entropy(loss), top1)
        for i, (use, _) in enumerate(uses):
            tokens, inputs = microbatches[i]
            microbatches[i] = tokens, replace(inputs, experts=use)
        self._pipeline.train(microbatches, finish)
        found = self._stages.told(outputs, self._last)
        for output, value in zip(found, self._auxiliary_of_rows(uses), strict=True):
            done(output if not value else replace(output, sums=output.sums | {"router_aux_loss": value}))

    def _auxiliary_of_rows(self, uses: Sequence[tuple[ExpertUse | None, int]]) -> Sequence[Tensor | None]:
        """Auxiliary loss of each row, summed over the stages' shares."""
        if self.auxiliary is None:
            return [None] * len(uses)
        own = [float(self.auxiliary.value(use)) * count for use, count in uses if use is not None]
        return [torch.tensor(sum(parts)) for parts in zip(*self._stages.said_by_stages(own), strict=True)]

    def _asked(
        self,
        rows: Sequence[PackedRow],
        temperature: float,
        entropy: bool,
        values: bool = False,
        top1: bool = False,
    ) -> list[Tensor]:
        assert not values, "a pipeline has no value head"
        found: list[Tensor] = []

        def finish(i: int, scored: Tensor) -> Tensor:
            found.append(scored.cpu())
            return scored

        self._pipeline.score(self._microbatches(rows, temperature, entropy, top1), finish)
        self._let_go()
        return self._stages.told(found[: len(rows)], self._last)

    def _microbatches(
        self, rows: Sequence[PackedRow], temperature: float, entropy: bool, top1: bool = False
    ) -> list[tuple[Tensor, StageInputs]]:
        count = microbatches(self._layout, self._most(len(rows)))
        longest = max((len(row.tokens) for row in rows), default=1)
        length = longest + -longest % self._multiple
        filled = (*rows, *[NOTHING] * (count - len(rows)))
        found = [self._inputs(row, temperature, entropy, length) for row in filled]
        return [(tokens, replace(inputs, top1=top1)) for tokens, inputs in found]


def without_graph(output: LossOutput) -> LossOutput:
    def kept(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.detach().cpu() for name, value in metrics.items()}

    return LossOutput(output.total.detach().cpu(), kept(output.sums), kept(output.maxima))
