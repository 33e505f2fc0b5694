"""Forward and backward passes over rows through Megatron-Core's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.models.architecture import ModelConfig
from rondo.models.parts import take
from rondo.ops.pointwise.rope import rope_angles
from rondo.ops.vocabulary.logprobs import token_logprobs
from rondo.ops.vocabulary.split_logprobs import split_logprobs
from rondo.parallel.collectives import gather_equal
from rondo.train.learner.passes import predictions
from rondo.train.losses.sums import Loss, LossOutput, needs_entropy
from rondo.train.megatron.part import MegatronShard
from rondo.train.megatron.samples import samples_of


class MegatronPasses:
    """Passes in which dp ranks do not communicate, and may have different numbers of rows."""

    def __init__(self, part: MegatronShard, model: ModelConfig) -> None:
        rope = model.layers[0].attention.rope
        assert rope is not None
        self._part, self._rope, self._tied = part, rope, model.tied
        self._gpt: Any = part.module

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        return self._part.counted_elsewhere

    def forward_backward(
        self,
        rows: Sequence[PackedRow],
        loss: Loss,
        valid: float,
        temperature: float,
        done: Callable[[LossOutput], None],
    ) -> None:
        """Adds the gradient of the sum of losses, divided by `valid`; `done` is called with each row's output."""
        for row in rows:
            scored = self._scored(row, temperature, needs_entropy(loss))
            output = loss(predictions(row, scored, self._part.device))
            (output.total / valid).backward()  # type: ignore[no-untyped-call]
            done(output)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[PackedRow], temperature: float) -> list[Tensor]:
        return [self._scored(row, temperature, entropy=False) for row in rows]

    @torch.no_grad()
    def measure(self, rows: Sequence[PackedRow], loss: Loss, done: Callable[[LossOutput], None]) -> None:
        """Calls `done` with the loss's output of each row, without gradients."""
        for row in rows:
            done(loss(predictions(row, self._scored(row, 1.0, needs_entropy(loss)), self._part.device)))

    def _scored(self, row: PackedRow, temperature: float, entropy: bool) -> Tensor:
        """Log-probabilities of the predictions; only tokens that predict pass through the head."""
        samples = samples_of(row)
        rows, where = np.unique(samples.places[row.where], return_inverse=True)
        hidden = take(self._hidden(samples.tokens, samples.positions, samples.seen), self._placed(rows))
        tied = self._gpt.shared_embedding_or_output_weight() if self._tied else None
        logits, _ = self._gpt.output_layer(hidden[:, None], weight=tied)
        logits = take(logits[:, 0], self._placed(where))
        return self._score(logits, self._placed(row.targets), temperature, entropy)

    def _hidden(self, tokens: Any, positions: Any, seen: Any) -> Tensor:
        """[B, S] -> [B * S, H]. Megatron-Core has the sequence as the first axis."""
        angles = rope_angles(self._rope, self._placed(positions.T.reshape(-1)))
        angles = angles.view(*positions.T.shape, 1, -1)
        hidden = self._gpt.embedding(input_ids=self._placed(tokens), position_ids=None)
        hidden = self._gpt.decoder(
            hidden_states=hidden,
            attention_mask=self._placed(~seen)[:, None],
            rotary_pos_emb=torch.cat([angles, angles], -1),
        )
        flat: Tensor = hidden.transpose(0, 1).flatten(0, 1)
        return flat

    def _score(self, logits: Tensor, targets: Tensor, temperature: float, entropy: bool) -> Tensor:
        """Log-probabilities without the padding of the vocabulary."""
        group, own = self._part.group, self._part.vocabulary
        logits = logits[:, : own.stop - own.start]
        if group is None:
            return token_logprobs(logits, targets, temperature, entropy)
        gather = partial(_gathered, group=group)
        return split_logprobs(logits, targets, temperature, own.start, gather, entropy)

    def _placed(self, x: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self._part.device)


def _gathered(x: Tensor, *, group: Any) -> Tensor:
    return gather_equal(x[None], group)
