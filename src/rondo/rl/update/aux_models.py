"""Auxiliary models of RL: loaded once, run before a step's first mini-batch and, if necessary, offloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rondo.base.errors import ConfigError
from rondo.data.batching.packing import Floats, PackedRow
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder
from rondo.models.adapters.attached import adapter_of, switched_off
from rondo.rl.config import RlConfig
from rondo.rl.rollout.types import SampleGroup
from rondo.rl.update.advantages import TokenAdvantages
from rondo.rl.update.critic import make_critic, value_metrics
from rondo.rl.update.device_sharing import Role, Roles, critic_role, engine_role, optimizer_role, parked
from rondo.rl.update.distill import Teacher, distilled, divergence
from rondo.rl.update.division import ALONE, RankDivision
from rondo.rl.update.load_aux import load_beside
from rondo.rl.update.packing import Columns, StepTokens
from rondo.rl.update.pairs import OnlinePreference
from rondo.rl.update.reward_scores import RewardScorer, with_reward_model
from rondo.text.tokenizer import Tokenizer
from rondo.train.evaluation.evaluator import Evaluator, Metrics
from rondo.train.learner.learner import Learner
from rondo.train.learner.shared_prefix import shares_prefixes


class AuxiliaryModels:
    """The auxiliary models that the config enables; none by default."""

    def __init__(
        self, policy: Decoder, tokenizer: Tokenizer, config: RlConfig, division: RankDivision = ALONE
    ) -> None:
        """Load the models; must precede the construction of the policy's learner."""
        self.config, self.roles, self.division = config, Roles([]), division
        apart = config.needs_reference and adapter_of(policy) is None
        self.reference: Evaluator | None = None
        if apart:
            initial = _initial(policy, tokenizer, config, division)
            self.reference = Evaluator(initial, division.mesh, config)
        self.critic = make_critic(config, policy, tokenizer, division)
        settings = config.distill
        self.teacher = (
            Teacher.load(settings, tokenizer, policy.device, division) if settings.teacher else None
        )
        model, budget = config.reward_model.model, config.tokens_per_microbatch
        self.scorer = RewardScorer.load(model, tokenizer, policy.device, budget, division) if model else None
        share = config.share_prefix and shares_prefixes(policy.attention_specs(), division.mesh)
        self.preference = (
            OnlinePreference(config.pairs, self.reference, budget, share, division)
            if config.pairs.loss != "none"
            else None
        )

    def attach(self, learner: Learner) -> None:
        self._learner = learner
        if self.critic is not None:
            self.critic.attach(learner)

    def share_device(self, engine: LLM | None) -> None:
        """Enable device sharing. `engine` is an engine that shares the learner's weights and sleeps during updates,
        if any.
        """
        if not self.config.device_bytes:
            return
        if engine is None and self.scorer is not None and self.config.dynamic_sampling:
            raise ConfigError(
                "with rl.dynamic_sampling groups are judged while the learner is at work, so that the reward model can "
                "take no turns with it: leave rl.device_bytes at 0, or take rl.mode sync and single answers",
                param="rl.device_bytes",
            )
        roles: list[Role] = [optimizer_role(self._learner)]
        roles += [engine_role(engine)] if engine is not None else []
        if self.reference is not None:
            roles.append(parked("reference", self.reference.model, self.reference.computing))
        roles += [parked("teacher", self.teacher.evaluator.model)] if self.teacher is not None else []
        roles += [parked("reward_model", self.scorer.judge.model)] if self.scorer is not None else []
        critic = None if self.critic is None else self.critic.learner
        roles += [critic_role(critic)] if critic is not None else []
        self.roles = Roles(roles, self.config.device_bytes)

    def judged(self, groups: list[SampleGroup]) -> list[SampleGroup]:
        """The groups with the reward model's score added."""
        if self.scorer is None:
            return groups
        self.roles.phase("score")
        return with_reward_model(groups, self.scorer.scores(groups), self.config.reward_model.weight)

    def columns(self, tokens: StepTokens, rows: Sequence[PackedRow]) -> Columns:
        """Columns of each model's output for every token of the step, computed before the first update."""
        config, temperature = self.config, self.config.temperature
        outputs: list[tuple[bool, str, str, Callable[[], list[Floats]]]] = [
            (config.needs_old, "old", "old_logprobs", lambda: self._learner.logprobs(rows, temperature)),
            (config.needs_reference, "reference", "reference_logprobs", lambda: self._reference(rows)),
            (
                self.teacher is not None,
                "teacher",
                "teacher_logprobs",
                lambda: self.teacher.logprobs(rows, temperature) if self.teacher else [],
            ),
            (
                self.critic is not None,
                "values",
                "values",
                lambda: self.critic.values(rows) if self.critic else [],
            ),
        ]
        found = Columns()
        for needed, phase, name, compute in outputs:
            if needed:
                self.roles.phase(phase)
                found[name] = self.division.total(tokens.gathered(rows, compute()))
        return found

    def taught(
        self, found: TokenAdvantages, tokens: StepTokens, columns: Columns, shape: tuple[int, ...]
    ) -> TokenAdvantages:
        """The advantages with the teacher's contribution, if there is a teacher."""
        if self.teacher is None:
            return found
        settings = self.config.distill
        parts = zip(
            found.advantages,
            tokens.apart(tokens.sampler_logprobs, shape),
            tokens.apart(columns["teacher_logprobs"], shape),
            tokens.sampled(shape),
            strict=True,
        )
        advantages = [
            distilled(sampler.tolist(), teacher.tolist(), sampled, settings)
            + (own if settings.reward else 0.0)
            for own, sampler, teacher, sampled in parts
        ]
        return TokenAdvantages(advantages, found.returns)

    def metrics(self, rows: Sequence[PackedRow]) -> Metrics:
        """Metrics of the auxiliary models over the trained tokens."""

        def column(name: str) -> list[Floats]:
            return self.division.joined([row.columns[name] for row in rows])

        metrics: Metrics = {}
        if self.critic is not None:
            metrics |= value_metrics(column("values"), column("returns"))
        if self.teacher is not None:
            metrics |= divergence(column("sampler_logprobs"), column("teacher_logprobs"))
        return metrics

    def _reference(self, rows: Sequence[PackedRow]) -> list[NDArray[np.float32]]:
        """Log-probabilities of the initial policy: a separate model, or the base model with the adapter disabled."""
        if self.reference is not None:
            return self.reference.logprobs(rows, self.config.temperature)
        with switched_off(self._learner.computing):
            return self._learner.logprobs(rows, self.config.temperature)


def _initial(policy: Decoder, tokenizer: Tokenizer, config: RlConfig, division: RankDivision) -> Decoder:
    """A copy of the initial policy. Ranks map the model's files again, so that none copies the whole weights."""
    if division.mesh is None or not config.model:
        return copy.deepcopy(policy)
    dtype = torch.float32 if config.precision else None  # as stored
    return load_beside(config.model, tokenizer, "rl.model", policy.device, dtype)
