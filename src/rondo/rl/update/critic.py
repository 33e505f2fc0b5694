"""PPO critic: a value model of its own or a value head on the policy's layers."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.data.batching.packing import Floats, PackedRow
from rondo.models import Decoder
from rondo.models.fresh import make_scorer
from rondo.models.heads.value_head import add_value_head
from rondo.rl.config import RlConfig
from rondo.rl.update.config import CriticConfig
from rondo.rl.update.division import ALONE, RankDivision
from rondo.rl.update.load_aux import load_beside
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.learner.passes import Passes
from rondo.train.losses.sums import Loss
from rondo.train.losses.value import ValueLoss, WithValues

PREFIX = "critic/"
"""Prefix of the critic's metrics and of its tensors in a checkpoint."""


def make_critic(
    config: RlConfig, policy: Decoder, tokenizer: Tokenizer, division: RankDivision = ALONE
) -> Critic | None:
    """The configured critic. It must precede the policy's learner, because a shared critic is a part of the policy."""
    settings = config.critic
    if settings.kind == "none":
        return None
    if settings.kind == "shared":
        return SharedCritic(settings, policy)
    begin = settings.model or config.model
    if begin:
        dtype = torch.float32 if config.precision else None  # as stored
        beside = load_beside(begin, tokenizer, "rl.critic.model", policy.device, dtype)
        return SeparateCritic(config, beside, division)
    return SeparateCritic(config, copy.deepcopy(policy), division)


class Critic(ABC):
    def __init__(self, config: CriticConfig) -> None:
        self.config = config
        self.loss = ValueLoss(config.clip)
        self.learner: Learner | None = None
        """Learner of a separate critic."""

    def attach(self, policy: Learner) -> None:  # noqa: B027  a separate critic does not use the policy's learner
        """Attach the policy's learner after its construction."""

    def warming(self, step: int) -> bool:
        """Whether only the critic is trained in this step, counted from 0."""
        return step < self.config.warmup

    @abstractmethod
    def values(self, rows: Sequence[PackedRow]) -> list[Floats]:
        """For each row, the value before each of its predictions."""

    @abstractmethod
    def joined(self, loss: Loss) -> Loss:
        """The loss of the policy's learner, with the value loss added if the critic is shared."""

    @abstractmethod
    def forward_backward(self, rows: Sequence[PackedRow], valid: int) -> Metrics:
        """Gradients of the value loss, in addition to the policy's; rows have the columns `values` and `returns`."""

    @abstractmethod
    def optim_step(self, policy: Learner, step: int, share: float = 1.0) -> Metrics:
        """Optimizer step before the policy's. `share` is the policy's learning rate relative to its peak."""

    @abstractmethod
    def policy_learns(self, step: int) -> bool:
        """Whether the policy's optimizer step is applied."""

    @abstractmethod
    def states(self) -> dict[str, Tensor]:
        """Critic tensors that a checkpoint of the policy does not contain."""

    @abstractmethod
    def load(self, folder: str | Path, step: int) -> None: ...


class SeparateCritic(Critic):
    """A scorer with its own learner. A language model has a new head that predicts 0; a reward model has its own."""

    def __init__(self, config: RlConfig, model: Decoder, division: RankDivision = ALONE) -> None:
        super().__init__(config.critic)
        if not model.config.scores:
            make_scorer(model)
            torch.nn.init.zeros_(model.head.out.weight)
        self._lr = config.critic.lr or config.lr
        settings = {"lr": self._lr, "ema": 0.0, "export": "last"}
        mesh = division.mesh_for(model.config)
        self.learner: Learner = Learner(model, config.model_copy(update=settings), mesh)
        self.learner.prefix = PREFIX

    def values(self, rows: Sequence[PackedRow]) -> list[Floats]:
        return self.learner.logprobs(rows)

    def joined(self, loss: Loss) -> Loss:
        return loss

    def forward_backward(self, rows: Sequence[PackedRow], valid: int) -> Metrics:
        found = self.learner.forward_backward(rows, self.loss, valid=valid)
        return {name: value for name, value in found.items() if name.startswith(PREFIX)}

    def optim_step(self, policy: Learner, step: int, share: float = 1.0) -> Metrics:
        found = self.learner.optim_step(self._lr * share, math.isfinite)
        return {PREFIX + name: found[name] for name in ("grad_norm", "lr")}

    def policy_learns(self, step: int) -> bool:
        return not self.warming(step)

    def states(self) -> dict[str, Tensor]:
        return self.learner.states()

    def load(self, folder: str | Path, step: int) -> None:
        self.learner.load(folder, step)


class SharedCritic(Critic):
    """A value head on the policy's layers: one pass computes both outputs, and both losses train the layers."""

    def __init__(self, config: CriticConfig, policy: Decoder) -> None:
        super().__init__(config)
        add_value_head(policy)
        self._passes: Passes | None = None

    def attach(self, policy: Learner) -> None:
        if type(policy.passes) is not Passes:
            raise ConfigError(
                "rl.critic.kind: a shared critic needs the native learner without a pipeline. Use separate.",
                param="rl.critic.kind",
            )
        self._passes = policy.passes

    def values(self, rows: Sequence[PackedRow]) -> list[Floats]:
        assert self._passes is not None
        return [found.cpu().numpy() for found in self._passes.values(rows)]

    def joined(self, loss: Loss) -> Loss:
        return WithValues(loss, self.loss, self.config.coefficient)

    def forward_backward(self, rows: Sequence[PackedRow], valid: int) -> Metrics:
        """No operation: the policy's pass includes the critic."""
        return {}

    def optim_step(self, policy: Learner, step: int, share: float = 1.0) -> Metrics:
        """During warmup only the value head is trained: the gradients of all other parameters are dropped, because
        the policy shares them.
        """
        if self.warming(step):
            for name, parameter in policy.model.named_parameters():
                if not name.startswith("head.value."):
                    parameter.grad = None
        return {}

    def policy_learns(self, step: int) -> bool:
        """True: the policy's optimizer step also updates the value head."""
        return True

    def states(self) -> dict[str, Tensor]:
        return {}

    def load(self, folder: str | Path, step: int) -> None:
        """No operation: the policy's checkpoint includes the critic."""


def value_metrics(values: Sequence[Floats], returns: Sequence[Floats]) -> Metrics:
    """Metrics of the critic. Explained variance: 1 for a perfect prediction, 0 for a constant, negative for a
    prediction worse than a constant.
    """
    foreseen, found = (np.concatenate([np.zeros(0), *each]) for each in (values, returns))
    spread = float(found.var()) if found.size else 0.0
    return {
        "critic/value": float(foreseen.mean()) if found.size else 0.0,
        "critic/return": float(found.mean()) if found.size else 0.0,
        "critic/explained_variance": 1 - float((found - foreseen).var()) / spread if spread > 0 else 0.0,
    }
