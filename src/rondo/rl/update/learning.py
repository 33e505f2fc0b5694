"""The learner's half of a step: token columns before the first mini-batch, and the optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.models import Decoder
from rondo.rl.config import RlConfig
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.update.advantages import (
    AdaptiveKl,
    Floats,
    TokenAdvantages,
    divergences,
    teaching,
    token_advantages,
)
from rondo.rl.update.aux_models import AuxiliaryModels
from rondo.rl.update.division import ALONE, RankDivision
from rondo.rl.update.objective import policy_loss
from rondo.rl.update.packing import Columns, StepTokens, packed
from rondo.rl.update.pairs import RolloutPair, make_pairs
from rondo.rl.update.rewards import earned
from rondo.rl.update.throughput import Effort
from rondo.text.tokenizer import Tokenizer
from rondo.train.evaluation.evaluator import Metrics
from rondo.train.learner.factory import learner_of
from rondo.train.learner.shared_prefix import shares_prefixes
from rondo.train.losses.sums import Loss
from rondo.train.optim.schedule import learning_rate


@dataclass(frozen=True)
class Minibatch:
    rows: list[PackedRow]
    """Rows of this data-parallel rank."""
    tokens: int
    """Number of sampled tokens of all scored samples, including groups without advantages: the divisor of the loss."""
    pairs: list[RolloutPair] = field(default_factory=list)
    """Training data of preference training, in place of the rows."""


class Learning:
    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        config: RlConfig,
        longest: int,
        division: RankDivision = ALONE,
    ) -> None:
        """`longest`: maximum tokens of a sample."""
        self.config, self.longest, self.division = config, longest, division
        self._share_prefix = config.share_prefix and shares_prefixes(model.attention_specs(), division.mesh)
        self.kl = config.kl
        """Current coefficient of the KL divergence."""
        self.company = AuxiliaryModels(model, tokenizer, config, division)
        self.learner = learner_of(config.learner)(model, config, division.mesh)
        self.company.attach(self.learner)
        self.effort = Effort(self.learner, config.metrics.peak)
        self._aux_metrics: Metrics = {}
        self.update_metrics: list[Metrics] = []
        """Metrics of each mini-batch of the last step."""

    def prepare(
        self, groups: Sequence[SampleGroup], step: int
    ) -> tuple[list[Minibatch], list[list[list[float]]]]:
        """The step's mini-batches with all token columns of the loss, and each token's advantage."""
        tokens, table = StepTokens(groups), earned(groups, self.config, self.longest)
        if self.company.preference is not None:
            pairs = make_pairs(groups, table)
            return [Minibatch([], 0, pairs)] if pairs else [], [[[] for _ in g.samples] for g in groups]
        teach = (
            teaching(table) | self.config.every_group_counts if table.size else np.zeros(len(groups), bool)
        )
        batches = [self._minibatch(tokens, share, teach) for share in self._shares(len(groups), step)]
        batches = [batch for batch in batches if any(self.division.said(bool(batch.rows)))]
        columns = self.company.columns(tokens, [row for batch in batches for row in batch.rows])
        found = self._advantages(table, tokens, columns)
        columns["advantages"] = tokens.together(found.advantages)
        if found.returns is not None:
            columns["returns"] = tokens.together(found.returns)
        batches = [replace(batch, rows=tokens.with_columns(batch.rows, columns)) for batch in batches]
        self._aux_metrics = self.company.metrics([row for batch in batches for row in batch.rows])
        taught = {i for i, group in enumerate(groups) if teach[i]}
        return batches, tokens.advantages_by_sample(found.advantages, taught)

    def learn(self, batches: Sequence[Minibatch], step: int) -> Metrics:
        """Train on the mini-batches, in the same order in every epoch. A step with a non-finite gradient is skipped
        and counted.
        """
        config, rate = self.config, self._learning_rate(step)
        loss = policy_loss(config, self.kl)
        self.effort.counts([row for batch in batches for row in batch.rows], config.epochs)
        self.update_metrics, left_out = [], 0
        for _ in range(config.epochs):
            for batch in batches:
                metrics = self._update(batch, loss, step, rate)
                left_out += not math.isfinite(metrics["grad_norm"])
                self.update_metrics.append(metrics)
        counts = {"updates": float(len(self.update_metrics)), "left_out": float(left_out)}
        metrics = merged(self.update_metrics) | self._aux_metrics | counts
        if config.kl_target and "reference_kl" in metrics:
            metrics["kl_coefficient"] = self.kl
            adaptive = AdaptiveKl(self.kl, config.kl_target, config.kl_horizon)
            self.kl = adaptive.after(metrics["reference_kl"]).coefficient
        return metrics

    def _update(self, batch: Minibatch, loss: Loss, step: int, rate: float) -> Metrics:
        """One optimizer step of the policy and one of the critic."""
        config, critic, preference = self.config, self.company.critic, self.company.preference
        if preference is not None:
            metrics = preference.forward_backward(self.learner, batch.pairs)
            return metrics | self.learner.optim_step(rate, math.isfinite)
        joined = loss if critic is None else critic.joined(loss)
        metrics = self.learner.forward_backward(
            batch.rows, joined, temperature=config.temperature, valid=batch.tokens
        )
        learns = True
        if critic is not None:
            metrics |= critic.forward_backward(batch.rows, batch.tokens)
            metrics |= critic.optim_step(self.learner, step, rate / config.lr)
            learns = critic.policy_learns(step)
        return metrics | self.learner.optim_step(rate, lambda norm: learns and math.isfinite(norm))

    def states(self) -> dict[str, Tensor]:
        critic = self.company.critic
        return self.learner.states() | ({} if critic is None else critic.states())

    def facts(self) -> dict[str, Any]:
        return {"updates": self.learner.step, "kl": self.kl}

    def load(self, folder: str | Path, facts: Mapping[str, Any]) -> None:
        self.learner.load(folder, facts["updates"])
        if self.company.critic is not None:
            self.company.critic.load(folder, facts["updates"])
        self.kl = facts["kl"]

    def _shares(self, count: int, step: int) -> list[list[int]]:
        """Group indices of each mini-batch: in order for a single mini-batch, otherwise shuffled."""
        wanted = min(self.config.minibatches, count)
        if wanted <= 1:
            return [list(range(count))]
        order = np.random.default_rng([self.config.seed, step]).permutation(count)
        return [sorted(int(i) for i in share) for share in np.array_split(order, wanted)]

    def _minibatch(self, tokens: StepTokens, share: Sequence[int], teach: NDArray[np.bool_]) -> Minibatch:
        config = self.config
        rows = packed(
            tokens,
            share,
            [i for i in share if teach[i]],
            counts=self._counts,
            aggregate=config.aggregate,
            longest=self.longest,
            share_prefix=self._share_prefix,
            budget=config.tokens_per_microbatch,
            part=self.division.part,
            parts=self.division.parts,
        )
        samples = (s for i in share for s in tokens.groups[i].samples if self._counts(s))
        return Minibatch(rows, sum(s.trained for s in samples))

    def _counts(self, sample: Rollout) -> bool:
        """Whether a sample is part of the loss. A sample without a valid score is excluded unless a teacher scores
        its tokens.
        """
        return sample.judged or bool(self.config.distill.teacher)

    def _advantages(self, table: Floats, tokens: StepTokens, columns: Columns) -> TokenAdvantages:
        config = self.config
        costs = None
        if config.kl and config.kl_in == "reward":
            costs = divergences(columns["old_logprobs"], columns["reference_logprobs"], config.kl_estimator)
        found = token_advantages(
            config,
            table,
            tokens.sampled(table.shape),
            kl=self.kl,
            divergences=None if costs is None else tokens.apart(costs, table.shape),
            values=tokens.apart(columns["values"], table.shape) if "values" in columns else None,
        )
        return self.company.taught(found, tokens, columns, table.shape)

    def _learning_rate(self, step: int) -> float:
        config = self.config
        return learning_rate(
            step,
            lr=config.lr,
            warmup=config.warmup,
            steps=config.steps,
            decay=config.decay,
            lr_end=config.lr_end,
        )


def merged(update_metrics: Sequence[Metrics]) -> Metrics:
    """Metrics of several optimizer steps: the maximum of maxima, the sum of tokens, the mean of all others."""
    if len(update_metrics) == 1:
        return dict(update_metrics[0])
    found: Metrics = {}
    for name in dict.fromkeys(name for metrics in update_metrics for name in metrics):
        values = [metrics[name] for metrics in update_metrics if name in metrics]
        if name.endswith("_max"):
            found[name] = max(values)
        elif name == "tokens":
            found[name] = sum(values)
        else:
            found[name] = sum(values) / len(values)
    return found
