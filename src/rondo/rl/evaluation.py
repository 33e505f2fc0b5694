"""Evaluation on held-out prompts: pass@1 and pass@k with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rondo.client.types import SamplingParams
from rondo.graders import Score
from rondo.rl.config import RlConfig
from rondo.rl.rollout.prompt_sampler import SPREAD
from rondo.rl.rollout.sync_collector import Collector
from rondo.rl.rollout.types import SampleGroup, reward_metrics
from rondo.rl.tasks.types import AnyTask
from rondo.train.evaluation.evaluator import Metrics

CONFIDENCE_Z = 1.959963984540054
"""Quantile of the normal distribution for a 95% interval."""
RESAMPLES = 1000


def answers(
    collector: Collector, task: AnyTask, config: RlConfig, max_tokens: int, seed: int = 0
) -> list[SampleGroup]:
    """Scored answers to `eval_prompts` held-out problems at temperature 1. Another seed selects another set of
    problems.
    """
    problems = task.prompts(seed, config.eval_prompts, "held_out")
    sampling = SamplingParams(n=config.evaluate.samples, max_tokens=max_tokens)
    seeds = [seed * SPREAD + index for index in range(len(problems))]
    return collector.answer(problems, sampling, seeds)


def measured(groups: Sequence[SampleGroup], config: RlConfig) -> Metrics:
    return reward_metrics(groups) | pass_metrics(groups, config.evaluate.k, config.evaluate.correct)


def pass_metrics(groups: Sequence[SampleGroup], ks: Sequence[int], correct: float) -> Metrics:
    """pass@k for each k and for 1, each with a 95% interval. A sample without a valid score counts as failed;
    `unjudged` counts these samples.
    """
    counts = [(len(group.samples), _right(group, correct)) for group in groups if group.samples]
    metrics: Metrics = {}
    for k in sorted({1, *ks}):
        asked = [(n, c) for n, c in counts if n >= k]
        if not asked:
            continue
        each = [pass_at(k, n, c) for n, c in asked]
        if all(n == 1 for n, _ in asked):
            low, high = wilson(sum(c for _, c in asked), len(asked))
        else:
            low, high = bootstrap(each)
        metrics |= {f"pass@{k}": sum(each) / len(each), f"pass@{k}_low": low, f"pass@{k}_high": high}
    return metrics


def pass_at(k: int, n: int, c: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples passes, given c passes in n samples (Chen
    et al., 2021).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def wilson(passed: int, asked: int) -> tuple[float, float]:
    """95% Wilson interval of a share, valid also for shares of 0 and 1."""
    share, z = passed / asked, CONFIDENCE_Z
    middle = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z / (1 + z * z / asked) * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """95% bootstrap interval of the mean over problems; samples of one problem are correlated. Deterministic."""
    found = np.asarray(values)
    picks = np.random.default_rng(0).integers(len(found), size=(RESAMPLES, len(found)))
    low, high = np.quantile(found[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _right(group: SampleGroup, correct: float) -> int:
    return sum(sample.score is not None and _passes(sample.score, correct) for sample in group.samples)


def _passes(score: Score, correct: float) -> bool:
    if score.outcome != "ok":
        return False
    return score.parts["correct"] >= 1.0 if "correct" in score.parts else score.total >= correct
