"""A rank's part of a decoder as one call: inputs are tokens or the previous stage's hidden states, outputs are hidden
states or the log-probabilities of a row's predictions.
"""

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
    """Inputs besides the tokens of a row, or of a rank's part of it. `real` masks the row's own tokens, as opposed to
    padding. Predictions are made from the hidden states `rows`: the i-th one from `rows[where[i]]`, for the token
    `targets[i]`. `gather` joins the predictions of all ranks. Equal predictions of a row are scored once: `back` is the
    index of each prediction among the scored ones.
    """

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
    """Whether to return the entropy of each prediction's distribution beside its log-probability."""
    top1: bool = False
    """Whether to return, as a further column, 1 for each target that is the most likely token."""
    values: bool = False
    """Whether to return the value head's output as the last column."""
    experts: Any = None
    """Accumulator of the row's router decisions, for a learner."""


_passing: ContextVar[StageInputs | None] = ContextVar("rondo_row_in_passing", default=None)


def row_in_passing() -> StageInputs | None:
    """Inputs of the row that passes through a piece in this thread; None if the model is called directly or recomputes
    for a backward pass.
    """
    return _passing.get()


class Stage(nn.Module):
    """A piece of a decoder: all of it, or the `index`-th of `count` pieces. Parameters have their names in the decoder,
    below `decoder`.
    """

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
        """Tokens [T] or the previous piece's hidden states [T, H] -> [T, H], or on the last piece [N]; [N, 2] or more
        with entropies, top-1 hits or values.
        """
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
        scored = head.logprobs(states, inputs.targets, inputs.temperature, inputs.entropy, inputs.top1)
        if inputs.values:
            columns = scored[:, None] if scored.dim() == 1 else scored
            scored = torch.cat([columns, head.values(states)[:, None]], 1)
        # Not a view: FSDP's hook on a module's output would be lost if a view were changed in place.
        return take(inputs.gather(scored), inputs.back).clone()
