"""Rollout metrics of a step: rewards by part, lengths, duplicates, staleness. Arithmetic, no tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rondo.rl.rollout.types import Rollout, SampleGroup

Metrics = dict[str, float]
Floats = NDArray[np.float64]

CUT_OFF = frozenset({"length", "turns", "time"})
"""Finish reasons of truncated samples."""
SOLVED = "correct"
"""Part of the reward that decides whether a problem is solved; without this part the total decides."""
OLDEST = 8
"""Staleness in versions from which on tokens are counted together."""


def group_metrics(groups: Sequence[SampleGroup], version: int) -> Metrics:
    """Metrics of all groups; `version` is the version of the trained weights."""
    samples = [sample for group in groups for sample in group.samples]
    if not samples:
        return {}
    return (
        rewards_by_part(samples)
        | failures(samples)
        | lengths(samples)
        | sameness(groups)
        | signal(groups)
        | staleness(samples, version)
    )


def rewards_by_part(samples: Sequence[Rollout]) -> Metrics:
    """Mean, deviation and range over the scored samples; empty if there are none."""
    scores = [sample.score for sample in samples if sample.score is not None and sample.score.outcome == "ok"]
    values = {"": [score.total for score in scores]} if scores else {}
    for name in dict.fromkeys(name for score in scores for name in score.parts):
        values[f"/{name}"] = [score.parts[name] for score in scores if name in score.parts]
    found: Metrics = {}
    for name, each in values.items():
        found[f"reward{name}"] = float(np.mean(each))
        found[f"reward_std{name}"] = float(np.std(each))
        found[f"reward_min{name}"] = float(min(each))
        found[f"reward_max{name}"] = float(max(each))
    return found


def failures(samples: Sequence[Rollout]) -> Metrics:
    """Number of samples without a valid score, by failure of the grader."""
    outcomes = Counter("none" if sample.score is None else sample.score.outcome for sample in samples)
    unjudged = len(samples) - outcomes["ok"]
    return {
        "unjudged": float(unjudged),
        "unjudged_share": unjudged / len(samples),
        "failed/timeout": float(outcomes["timeout"]),
        "failed/error": float(outcomes["error"]),
    }


def lengths(samples: Sequence[Rollout]) -> Metrics:
    """Lengths in sampled tokens. The mean negative log-probability is a free estimate of the entropy."""
    counts = np.array([sample.trained for sample in samples])
    logprobs = _sampled(samples, "logprobs")
    middle, most = np.percentile(counts, (50, 99))
    found = {
        "answer_tokens": float(counts.mean()),
        "answer_tokens_p50": float(middle),
        "answer_tokens_p99": float(most),
        "answer_tokens_max": float(counts.max()),
        "truncated": sum(sample.finish_reason in CUT_OFF for sample in samples) / len(samples),
    }
    return found | ({"sampled_entropy": float(-logprobs.mean())} if logprobs.size else {})


def sameness(groups: Sequence[SampleGroup]) -> Metrics:
    """Duplicates among samples. `duplicated`: share of a group's samples that repeat another sample of the group,
    token for token. `same_answer`: share of problems whose most frequent answer is the most frequent overall, a
    sign of a policy that ignores its prompt.
    """
    filled = [group for group in groups if group.samples]
    shares = [
        1 - len({tuple(sample.token_ids) for sample in group.samples}) / len(group.samples)
        for group in filled
    ]
    found = {"duplicated": float(np.mean(shares))}
    by_problem: dict[str, Counter[str]] = {}
    for group in filled:
        said = by_problem.setdefault(str(group.problem.messages), Counter())
        said.update(sample.text.strip() for sample in group.samples)
    if len(by_problem) > 1:
        usual = Counter(said.most_common(1)[0][0] for said in by_problem.values())
        found["same_answer"] = usual.most_common(1)[0][1] / len(by_problem)
    return found


def signal(groups: Sequence[SampleGroup]) -> Metrics:
    """Training signal of group-relative algorithms: shares of groups with equal rewards, of groups without a solved
    sample, and of groups with all samples solved.
    """
    rewards = [found for group in groups if (found := _judged(group, None))]
    if not rewards:
        return {}
    solved = [found for group in groups if (found := _judged(group, SOLVED))] or rewards
    return {
        "equal_groups": sum(min(each) == max(each) for each in rewards) / len(rewards),
        "solve_none": sum(max(each) <= 0 for each in solved) / len(solved),
        "solve_all": sum(min(each) >= 1 for each in solved) / len(solved),
    }


def staleness(samples: Sequence[Rollout], version: int) -> Metrics:
    """Staleness of the sampled tokens in weight versions: mean, maximum and the share of each value as `stale/<n>`."""
    versions = _sampled(samples, "versions").astype(np.int64)
    if not versions.size:
        return {}
    behind = np.maximum(version - versions, 0)
    counts = np.bincount(np.minimum(behind, OLDEST)) / behind.size
    shares = {f"stale/{n}{'+' * (n == OLDEST)}": float(share) for n, share in enumerate(counts)}
    newest = {"weight_version": float(versions.max())}
    return {"stale": float(behind.mean()), "stale_max": float(behind.max())} | shares | newest


def _sampled(samples: Sequence[Rollout], column: str) -> Floats:
    """Values of the sampled tokens of all samples. One array for all, because each small array has a fixed cost."""
    pieces = [piece for sample in samples for piece in sample.pieces]
    values = np.array(list(chain.from_iterable(getattr(piece, column) for piece in pieces)), np.float64)
    chosen = np.array(list(chain.from_iterable(piece.sampled for piece in pieces)), bool)
    return np.asarray(values[chosen])


def _judged(group: SampleGroup, part: str | None) -> list[float]:
    scores = [sample.score for sample in group.samples]
    ok = [score for score in scores if score is not None and score.outcome == "ok"]
    if part is None:
        return [score.total for score in ok]
    return [score.parts[part] for score in ok if part in score.parts]
