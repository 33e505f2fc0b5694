"""On-policy distillation: a teacher scores each token of the policy's samples.

The cost of a sampled token is the reverse divergence KL(policy | teacher), estimated by log policy - log teacher.
With its negative as the advantage, the policy gradient is the gradient of the divergence (Agarwal et al., 2024, with
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
from rondo.rl.update.division import ALONE, RankDivision
from rondo.rl.update.load_aux import load_beside
from rondo.text.tokenizer import Tokenizer
from rondo.train.evaluation.evaluator import Evaluator, Metrics


@dataclass(frozen=True)
class Teacher:
    evaluator: Evaluator

    @classmethod
    def load(
        cls,
        config: DistillConfig,
        tokenizer: Tokenizer,
        device: torch.device,
        division: RankDivision = ALONE,
    ) -> Teacher:
        """Load a teacher, which computes in its stored type."""
        model = load_beside(config.teacher, tokenizer, "rl.distill.teacher", device)
        return cls(Evaluator(model, division.mesh_for(model.config)))

    def logprobs(self, rows: Sequence[PackedRow], temperature: float) -> list[Floats]:
        """Log-probabilities of each row's predictions, at the policy's temperature."""
        return self.evaluator.logprobs(rows, temperature)


def distilled(
    sampler: Sequence[float], teacher: Sequence[float], sampled: Sequence[bool], config: DistillConfig
) -> NDArray[np.float64]:
    """The teacher's contribution to the advantages of one sample's tokens, 0 for tokens that the policy did not
    sample.

    With a discount the cost of a token includes the divergences of later tokens, each discounted by the number of
    sampled tokens in between.
    """
    own = np.asarray(sampled, bool)
    costs = np.where(own, np.asarray(sampler, np.float64) - np.asarray(teacher, np.float64), 0.0)
    after = 0.0
    for i in np.flatnonzero(own)[::-1]:
        costs[i] = after = costs[i] + config.discount * after
    return -config.weight * costs


def divergence(sampler: Sequence[Floats], teacher: Sequence[Floats]) -> Metrics:
    """Mean reverse divergence of all sampled tokens."""
    costs = np.concatenate([np.zeros(0), *(p - q for p, q in zip(sampler, teacher, strict=True))])
    return {"distill/reverse_kl": float(costs.mean()) if costs.size else 0.0}
