"""On-policy distillation: a teacher says how likely it finds each token of the policy's own answers.

The reverse divergence KL(policy | teacher), estimated at each sampled token by log policy - log teacher, is what the
token costs; an advantage of its negative makes the policy's gradient the divergence's (Agarwal et al., 2024, with
lambda 1; Lu and Thinking Machines, 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rondo.data.batching.packing import Floats, PackedRow
from rondo.rl.update.config import DistillConfig
from rondo.rl.update.load_aux import load_beside
from rondo.text.tokenizer import Tokenizer
from rondo.train.evaluation.evaluator import Evaluator, Metrics


@dataclass(frozen=True)
class Teacher:
    evaluator: Evaluator

    @classmethod
    def load(cls, config: DistillConfig, tokenizer: Tokenizer, device: torch.device) -> Teacher:
        """It computes in the type that it is stored in."""
        return cls(Evaluator(load_beside(config.teacher, tokenizer, "rl.distill.teacher", device)))

    def logprobs(self, rows: Sequence[PackedRow], temperature: float) -> list[Floats]:
        """For each row of each of its predictions, at the policy's temperature."""
        return self.evaluator.logprobs(rows, temperature)


def distilled(
    sampler: Sequence[float], teacher: Sequence[float], sampled: Sequence[bool], config: DistillConfig
) -> NDArray[np.float64]:
    """What the teacher adds to the advantages of one sample's tokens, 0 where the policy did not choose.

    With a discount a token also answers for what it led to: the divergences after it, each discounted by how many of
    the policy's own tokens lie between.
    """
    own = np.asarray(sampled, bool)
    costs = np.where(own, np.asarray(sampler, np.float64) - np.asarray(teacher, np.float64), 0.0)
    after = 0.0
    for i in np.flatnonzero(own)[::-1]:
        costs[i] = after = costs[i] + config.discount * after
    return -config.weight * costs


def divergence(sampler: Sequence[Floats], teacher: Sequence[Floats]) -> Metrics:
    """The mean over all of the policy's own tokens."""
    costs = np.concatenate([np.zeros(0), *(p - q for p, q in zip(sampler, teacher, strict=True))])
    return {"distill/reverse_kl": float(costs.mean()) if costs.size else 0.0}
