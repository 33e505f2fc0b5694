"""Forward and backward passes over rows, for any placement of the model's parts.

A rank has the rows of its share of the batch. Losses receive the log-probabilities of a whole row's predictions, and
are divided by the count of the batch of all ranks, so that the partition of the batch does not affect them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from rondo.data.batching.packing import Ints, PackedRow, padded
from rondo.models.attend import Attend, Packed
from rondo.models.decoder import Decoder
from rondo.parallel.config import MemoryConfig
from rondo.parallel.context.context import Context
from rondo.parallel.pipeline.stage import Stage, StageInputs
from rondo.parallel.precision import multiply_in_fp8
from rondo.parallel.recompute import keep_less
from rondo.train.learner.shared_prefix import SharedPrefix
from rondo.train.losses.auxiliary import Auxiliary, ExpertUse
from rondo.train.losses.sums import (
    Loss,
    LossOutput,
    Predictions,
    counted,
    needs_entropy,
    needs_top1,
    needs_values,
)

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh


class RowPasses(Protocol):
    """Interface of a model's passes to the learner."""

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Weights of this rank that another rank has too, and counts in the gradient norm."""

    def forward_backward(
        self,
        rows: Sequence[PackedRow],
        loss: Loss,
        valid: float,
        temperature: float,
        done: Callable[[LossOutput], None],
    ) -> None:
        """Adds the gradient of the sum of losses, divided by `valid`; `done` is called with each row's output."""

    def logprobs(self, rows: Sequence[PackedRow], temperature: float) -> list[Tensor]:
        """Log-probabilities of each row's predictions."""

    def measure(self, rows: Sequence[PackedRow], loss: Loss, done: Callable[[LossOutput], None]) -> None:
        """Calls `done` with the loss's output of each row, without gradients."""


class Passes:
    """Passes on one rank, or on ranks that each have a part of every layer."""

    def __init__(self, model: Decoder, mesh: Mesh | None = None, memory: MemoryConfig | None = None) -> None:
        memory = memory or MemoryConfig()
        self.mesh = mesh
        self._device = model.device if mesh is None else mesh.device
        self._vocabulary = model.config.vocab_size
        self._multiple = 1 if mesh is None else mesh.degrees.token_multiple
        self._context = Context() if mesh is None else Context(mesh.cp, mesh.degrees.config.cp_method)
        if mesh is None:
            multiply_in_fp8(model, memory.precision)
            keep_less(model, memory)
            self.pieces = [Stage(model)]
        else:
            from rondo.parallel.apply import parallelize

            self.pieces = parallelize(model, mesh, memory)
        self._stage = self.pieces[0]
        self.auxiliary: Auxiliary | None = None

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Weights of this rank that another rank has too, and counts in the gradient norm."""
        return []

    def forward_backward(
        self,
        rows: Sequence[PackedRow],
        loss: Loss,
        valid: float,
        temperature: float,
        done: Callable[[LossOutput], None],
    ) -> None:
        """Adds the gradient of the sum of losses, divided by `valid`; `done` is called with each row's output."""
        count, entropy, values = self._most(len(rows)), needs_entropy(loss), needs_values(loss)
        top1 = needs_top1(loss)
        for i in range(count):
            self._begin(last=i == count - 1)
            if i < len(rows):
                use, count_of_row = self._use(rows[i], loss, valid)
                scored = self._scored(rows[i], temperature, entropy, values, use, top1)
                output = loss(predictions(rows[i], scored, self._device, values, top1))
                (output.total / valid).backward()  # type: ignore[no-untyped-call]
                done(self._with_auxiliary(output, use, count_of_row))
            else:
                nothing = self._scored(NOTHING, temperature, entropy, values, None, top1).sum() * 0.0
                nothing.backward()  # type: ignore[no-untyped-call]

    def _use(self, row: PackedRow, loss: Loss, valid: float) -> tuple[ExpertUse | None, int]:
        """Accumulator of the row's router decisions, and the row's count in the loss."""
        count = counted(loss, row)
        return (None if self.auxiliary is None else self.auxiliary.use(count / valid)), count

    def _with_auxiliary(self, output: LossOutput, use: ExpertUse | None, count: int) -> LossOutput:
        if self.auxiliary is None or use is None or not count:
            return output
        value = self.auxiliary.value(use) * count
        return replace(output, sums=output.sums | {"router_aux_loss": value})

    def logprobs(self, rows: Sequence[PackedRow], temperature: float) -> list[Tensor]:
        return self._asked(rows, temperature, entropy=False)

    @torch.no_grad()
    def values(self, rows: Sequence[PackedRow]) -> list[Tensor]:
        """Output of the model's value head for each row's predictions. Layers may be gathered from several ranks."""
        return [scored[:, 1] for scored in self._asked(rows, 1.0, entropy=False, values=True)]

    @torch.no_grad()
    def measure(self, rows: Sequence[PackedRow], loss: Loss, done: Callable[[LossOutput], None]) -> None:
        """Calls `done` with the loss's output of each row, without gradients."""
        top1 = needs_top1(loss)
        found = self._asked(rows, 1.0, needs_entropy(loss), top1=top1)
        for row, scored in zip(rows, found, strict=True):
            done(loss(predictions(row, scored.to(self._device), self._device, with_top1=top1)))

    @torch.no_grad()
    def _asked(
        self,
        rows: Sequence[PackedRow],
        temperature: float,
        entropy: bool,
        values: bool = False,
        top1: bool = False,
    ) -> list[Tensor]:
        found = [self._scored(row, temperature, entropy, values, top1=top1) for row in rows]
        for _ in range(len(rows), self._most(len(rows))):
            self._scored(NOTHING, temperature, entropy, values, top1=top1)
        self._let_go()
        return found

    def _scored(
        self,
        row: PackedRow,
        temperature: float,
        entropy: bool,
        values: bool = False,
        use: ExpertUse | None = None,
        top1: bool = False,
    ) -> Tensor:
        tokens, inputs = self._inputs(row, temperature, entropy, self._multiple)
        scored: Tensor = self._stage(tokens, replace(inputs, values=values, experts=use, top1=top1))
        return scored

    def _inputs(
        self, row: PackedRow, temperature: float, entropy: bool, multiple: int
    ) -> tuple[Tensor, StageInputs]:
        own = 0 if row is NOTHING else len(row.tokens)
        row = padded(row, multiple)
        return inputs_of(row, temperature, self._vocabulary, self._device, self._context, entropy, own)

    def _most(self, rows: int) -> int:
        """Largest number of rows of any rank. All ranks must run as many passes, because all-gathers of layers involve
        all of them.
        """
        return rows if self.mesh is None else max(self.mesh.said(rows))

    def _begin(self, last: bool) -> None:
        if self.mesh is not None:
            from rondo.parallel.data import last_of_step

            last_of_step(self._stage, last, self.mesh.degrees.config.zero)

    def _let_go(self) -> None:
        if self.mesh is not None:
            from rondo.parallel.data import let_go

            for piece in self.pieces:
                let_go(piece)


NOTHING = PackedRow(
    tokens=np.zeros(1, np.int64),
    positions=np.zeros(1, np.int64),
    cu_seqlens=[0, 1],
    parents=[-1],
    where=np.zeros(1, np.int64),
    targets=np.zeros(1, np.int64),
    weights=np.zeros(1, np.float32),
    columns={},
    documents=[0, 1],
)
"""Row of a rank that has fewer rows than others. It does not contribute to the gradient."""


def predictions(
    row: PackedRow,
    scored: Tensor,
    device: torch.device,
    with_values: bool = False,
    with_top1: bool = False,
) -> Predictions:
    """`scored` are log-probabilities [N], or [N, 2] with entropies; top-1 hits and values are additional last columns,
    in this order."""
    values = top1 = None
    if with_values:
        scored, values = scored[:, :-1].squeeze(1), scored[:, -1]
    if with_top1:
        scored, top1 = scored[:, :-1].squeeze(1), scored[:, -1].detach()
    logprobs, entropy = (scored, None) if scored.dim() == 1 else scored.unbind(1)
    columns = {name: torch.from_numpy(column).to(device) for name, column in row.columns.items()}
    facts = {name: torch.from_numpy(facts).to(device) for name, facts in row.facts.items()}
    weights = torch.from_numpy(row.weights).to(device)
    return Predictions(logprobs, weights, columns, row.documents, facts, entropy, top1, values)


def inputs_of(
    row: PackedRow,
    temperature: float,
    vocabulary: int,
    device: torch.device,
    context: Context,
    entropy: bool = False,
    own: int | None = None,
) -> tuple[Tensor, StageInputs]:
    """Answers with a common beginning repeat some predictions: these pass through the head once. The first `own` tokens
    are the row's, by default all; the others are padding.
    """
    pairs, back = np.unique(row.where * vocabulary + row.targets, return_inverse=True)
    cut = context.cut(len(row.tokens))
    deal = cut.deal(pairs // vocabulary)
    held = cut.tokens(context.rank)
    rows, where = np.unique(deal.read(context.rank), return_inverse=True)

    def placed(x: Ints) -> Tensor:
        return torch.from_numpy(x).to(device)

    inputs = StageInputs(
        positions=placed(row.positions[held]),
        real=torch.from_numpy(held < (len(row.tokens) if own is None else own)).to(device),
        attend=context.attend(attend(row, device), cut),
        rows=placed(rows),
        where=placed(where),
        targets=placed(pairs[deal.own(context.rank)] % vocabulary),
        gather=partial(context.gather, deal=deal),
        back=placed(back),
        temperature=temperature,
        entropy=entropy,
    )
    return placed(row.tokens[held]), inputs


def attend(row: PackedRow, device: torch.device) -> Attend:
    if any(parent >= 0 for parent in row.parents):
        starts = row.positions[row.cu_seqlens[:-1]].tolist()
        return SharedPrefix(row.cu_seqlens, row.parents, starts, device)
    return Packed(row.cu_seqlens, device)
