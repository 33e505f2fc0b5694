"""Execution of rows through the pieces of a model on several ranks, with torch's schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from rondo.models.decoder import Decoder
from rondo.parallel.pipeline.stage import Stage, StageInputs
from rondo.parallel.pipeline.tie import TiedEmbeddingSync
from rondo.parallel.ranks.mesh import Mesh

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "ZBVZeroBubble",
}
Finish = Callable[[int, Tensor], Tensor]
"""Function from the i-th row's log-probabilities to the loss, on the stage that has the last piece."""


class Pipeline:
    def __init__(self, model: Decoder, pieces: Sequence[Stage], mesh: Mesh, computing: torch.dtype) -> None:
        """`computing` is the type of the hidden states between pieces."""
        self._pieces = pieces
        self._mesh = mesh
        self._hidden, self._dtype = model.config.hidden_size, computing
        self._tie = TiedEmbeddingSync.of(model, mesh, pieces)

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Weights of this rank that another stage counts in the gradient norm."""
        return self._tie.counted_elsewhere if self._tie else []

    def train(self, rows: Sequence[tuple[Tensor, StageInputs]], finish: Finish) -> None:
        """Adds the gradient of the sum of losses. Rows have equal length, and their number must fit the schedule."""
        with self._gradients_kept(), self._tie.passes() if self._tie else nullcontext():
            self._schedule(rows, finish).step(target=self._numbers(rows))

    @torch.no_grad()
    def score(self, rows: Sequence[tuple[Tensor, StageInputs]], finish: Finish) -> None:
        """Forward pass only."""
        with self._gradients_kept():
            self._schedule(rows, finish).eval(target=self._numbers(rows))

    @contextmanager
    def _gradients_kept(self) -> Iterator[None]:
        """Preserves accumulated gradients, which a schedule clears in its pieces at the start."""
        parameters = (parameter for piece in self._pieces for parameter in piece.parameters())
        before = [(each, each.grad) for each in parameters if each.grad is not None]
        for parameter, _ in before:
            parameter.grad = None
        yield
        for parameter, gradient in before:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _numbers(self, rows: Sequence[Any]) -> Tensor | None:
        return torch.arange(len(rows)) if self._pieces[-1].last else None

    def _schedule(self, rows: Sequence[tuple[Tensor, StageInputs]], finish: Finish) -> Any:
        kind = schedules.get_schedule_class(SCHEDULES[self._mesh.degrees.config.schedule])
        shape = (len(rows[0][0]) // self._mesh.degrees.tp, self._hidden)
        between = torch.empty(shape, dtype=self._dtype, device="meta", requires_grad=True)
        pieces = [_Piece(piece, rows, between, self._mesh) for piece in self._pieces]
        single = issubclass(kind, schedules.PipelineScheduleSingle)
        return kind(
            pieces[0] if single else pieces,
            n_microbatches=len(rows),
            loss_fn=lambda logprobs, number: finish(int(number), logprobs),
            scale_grads=False,
        )


class _Piece(PipelineStage):
    """Stage of torch's schedules. A row's inputs are available on each rank; only hidden states are sent."""

    def __init__(
        self, piece: Stage, rows: Sequence[tuple[Tensor, StageInputs]], between: Tensor, mesh: Mesh
    ) -> None:
        self._rows, self._row = rows, 0
        super().__init__(
            piece,
            piece.index,
            piece.count,
            mesh.device,
            input_args=rows[0][0] if piece.first else between,
            output_args=between,
            group=mesh.pp,
        )

    def forward_one_chunk(  # type: ignore[override]
        self, fwd_chunk_id: int, args: Any, kwargs: dict[str, Any] | None = None, **others: Any
    ) -> Any:
        self._row = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, self._rows[fwd_chunk_id][:1], {}, **others)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward_maybe_with_nosync(*args, self._rows[self._row][1])  # type: ignore[no-untyped-call]

    # Between two pieces of one rank torch passes gradients on in an evaluation too, although there are none.

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    # Torch before 2.12 also connects to neighbours on the same rank, and requires outputs of equal shape.

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]

    def _validate_fwd_outputs(self, outputs: Any) -> None:
        """Accepts any shape: the last piece has one output per prediction of the row."""
