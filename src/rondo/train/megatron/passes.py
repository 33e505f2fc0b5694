"""Forward and backward passes over rows through Megatron-Core's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

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
from rondo.train.learner.pipelined import without_graph
from rondo.train.losses.sums import Loss, LossOutput, needs_entropy
from rondo.train.megatron.cpu import on_device
from rondo.train.megatron.part import MegatronShard
from rondo.train.megatron.samples import Samples, samples_of

T = TypeVar("T")


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
        return self._predicted(row, samples, self._hidden(samples), temperature, entropy)

    def _predicted(
        self, row: PackedRow, samples: Samples, hidden: Tensor, temperature: float, entropy: bool
    ) -> Tensor:
        rows, where = np.unique(samples.places[row.where], return_inverse=True)
        hidden = take(hidden.transpose(0, 1).flatten(0, 1), self._placed(rows))
        tied = self._gpt.shared_embedding_or_output_weight() if self._tied else None
        logits, _ = self._gpt.output_layer(hidden[:, None], weight=tied)
        logits = take(logits[:, 0], self._placed(where))
        return self._score(logits, self._placed(row.targets), temperature, entropy)

    def _hidden(self, samples: Samples) -> Tensor:
        """[B, S] -> [S, B, H]. A later stage has the hidden states of the one before as its input."""
        positions, hidden = samples.positions.T, None
        angles = rope_angles(self._rope, self._placed(positions.reshape(-1))).view(*positions.shape, 1, -1)
        if self._part.stage.first:
            hidden = self._gpt.embedding(input_ids=self._placed(samples.tokens), position_ids=None)
        found: Tensor = self._gpt.decoder(
            hidden_states=hidden,
            attention_mask=self._placed(~samples.seen)[:, None],
            rotary_pos_emb=torch.cat([angles, angles], -1),
        )
        return found

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


class MegatronPipeline(MegatronPasses):
    """Passes over pipeline stages in Megatron-Core's 1F1B schedule. The outputs of the last stage are sent to all."""

    def forward_backward(
        self,
        rows: Sequence[PackedRow],
        loss: Loss,
        valid: float,
        temperature: float,
        done: Callable[[LossOutput], None],
    ) -> None:
        for output in self._run(
            rows, temperature, needs_entropy(loss), self._measured(loss, valid), train=True
        ):
            done(output)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[PackedRow], temperature: float) -> list[Tensor]:
        return self._run(rows, temperature, False, lambda row, scored: (scored, scored.cpu()), train=False)

    @torch.no_grad()
    def measure(self, rows: Sequence[PackedRow], loss: Loss, done: Callable[[LossOutput], None]) -> None:
        for output in self._run(rows, 1.0, needs_entropy(loss), self._measured(loss, 1.0), train=False):
            done(output)

    def _measured(self, loss: Loss, valid: float) -> Callable[[PackedRow, Tensor], tuple[Tensor, LossOutput]]:
        """The end of a pass, which computes the loss of a row."""

        def finish(row: PackedRow, scored: Tensor) -> tuple[Tensor, LossOutput]:
            output = loss(predictions(row, scored, self._part.device))
            return output.total / valid, without_graph(output)

        return finish

    def _run(
        self,
        rows: Sequence[PackedRow],
        temperature: float,
        entropy: bool,
        finish: Callable[[PackedRow, Tensor], tuple[Tensor, T]],
        *,
        train: bool,
    ) -> list[T]:
        """Results of `finish` for each row, on all stages; it returns the tensor of the backward pass, and a result."""
        from megatron.core.pipeline_parallel.schedules import (
            forward_backward_pipelining_without_interleaving as schedule,
        )

        def step(rows: Iterator[PackedRow], _: Any) -> tuple[Tensor, Callable[[Tensor], Any] | None]:
            row = next(rows)
            samples = samples_of(row)
            hidden = self._hidden(samples)
            if not self._part.stage.last:
                return hidden, None

            def end(scored: Tensor) -> tuple[Tensor, Tensor, T]:
                total, result = finish(row, scored)
                return total, torch.ones((), dtype=torch.int), result

            return self._predicted(row, samples, hidden, temperature, entropy), end

        found: list[T] = []
        if rows:
            with on_device():
                found = schedule(
                    forward_step_func=step,
                    data_iterator=iter(rows),
                    model=self._gpt,
                    num_microbatches=len(rows),
                    seq_length=1,  # each pass sends its own shape
                    micro_batch_size=1,
                    forward_only=not train,
                )
        assert self._part.mesh is not None
        return self._part.mesh.told(found, self._part.stage.count - 1)


def _gathered(x: Tensor, *, group: Any) -> Tensor:
    return gather_equal(x[None], group)
