"""What a rank has of a decoder, as one call: tokens, or what the stage before made of them, go in; hidden states come
out, or the log-probabilities of a row's predictions."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.attend import Attend
from rondo.models.decoder import Decoder
from rondo.models.parts import take


@dataclass(frozen=True)
class StageInputs:
    """Beside the tokens of a row, or of a rank's part of it. `real` says of each whether it is the row's own, and does
    not only fill it up. Predictions are made from the hidden states `rows`; the
    i-th one from `rows[where[i]]`, of the token `targets[i]`. `gather` puts those of all ranks together. Several of a
    row may be alike, and are scored once: `back` says which of the scored each is."""

    positions: Tensor
    real: Tensor
    attend: Attend
    rows: Tensor
    where: Tensor
    targets: Tensor
    gather: Callable[[Tensor], Tensor]
    back: Tensor
    temperature: float
    entropy: bool = False
    """Whether each prediction is given its distribution's entropy beside its log-probability."""
    values: bool = False
    """Whether what the value head says stands beside all else."""
    experts: Any = None
    """Where a learner adds up the router decisions of the row."""


_passing: ContextVar[StageInputs | None] = ContextVar("rondo_row_in_passing", default=None)


def row_in_passing() -> StageInputs | None:
    """Of the row that goes through a piece in this thread; None where the model is called by itself, or computes again
    for a backward pass."""
    return _passing.get()


class Stage(nn.Module):
    """A piece of a decoder: all of it, or the `index`-th of `count` pieces. Its parameters keep the decoder's own names
    in `decoder`."""

    def __init__(self, decoder: Decoder, index: int = 0, count: int = 1) -> None:
        super().__init__()
        self.decoder = decoder
        self.index, self.count = index, count

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def forward(self, x: Tensor, inputs: StageInputs) -> Tensor:
        """Tokens [T], or what the piece before made of them [T, H] -> [T, H], or on the last piece [N], with
        entropies or values [N, 2], with both [N, 3]."""
        if self.first:
            x = self.decoder.embed(x)
        read = inputs.rows if self.last else None
        token = _passing.set(inputs)
        try:
            x = self.decoder.through(x, inputs.positions, inputs.attend, read)
        finally:
            _passing.reset(token)
        return self.score(x, inputs) if self.last else x

    def score(self, hidden: Tensor, inputs: StageInputs) -> Tensor:
        head, states = self.decoder.head, take(hidden, inputs.where)
        scored = head.logprobs(states, inputs.targets, inputs.temperature, inputs.entropy)
        if inputs.values:
            scored = torch.cat([scored.view(len(states), -1), head.values(states)[:, None]], 1)
        # Not a view: FSDP's hook on what a module returns would be lost if somebody changed one in place.
        return take(inputs.gather(scored), inputs.back).clone()
