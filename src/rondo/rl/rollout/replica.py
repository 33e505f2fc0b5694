"""Whole copy of a policy for an engine, if the weights of its learner are divided over ranks or fused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from rondo.models import Decoder
from rondo.parallel.data import widen
from rondo.parallel.precision import computing_type
from rondo.rl.config import RlConfig

if TYPE_CHECKING:
    from rondo.train.learner.learner import Learner


def pushed_type(policy: Decoder, config: RlConfig) -> torch.dtype:
    """Type of the weights that an engine receives."""
    return computing_type(torch.float32 if config.precision else policy.dtype, config.precision)


class WeightReplica:
    """`pull` gathers the learner's weights, parameter by parameter, so that memory for one whole parameter is needed
    beside the copy. All ranks take part; ranks without an engine keep nothing.
    """

    def __init__(self, policy: Decoder, config: RlConfig, device: torch.device, *, here: bool) -> None:
        """Copies the policy to the rank's device in the compute type, before a learner divides it. `here`: whether this
        rank has an engine.
        """
        self._dtype = pushed_type(policy, config)
        self.model: Decoder | None = None
        if here:
            self.model = copy.deepcopy(policy).requires_grad_(False)
            widen(self.model, self._dtype)
            self.model.to(device)

    @torch.no_grad()
    def pull(self, learner: Learner) -> None:
        """Fills the copy with the learner's current weights."""
        target = {} if self.model is None else dict(self.model.named_parameters())
        for name, whole in learner.gathered(self._dtype):
            if name in target:  # an engine has no value head
                target[name].copy_(whole)
