import math

import numpy as np
import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.tasks.types import Problem
from rondo.rl.update.config import PairsConfig
from rondo.rl.update.pairs import OnlinePreference, make_pairs
from rondo.train.config import OptimConfig
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.learner.learner import Learner
from support.tiny import tiny_model

PROBLEM = Problem("reverse AB", {})
PROMPT = [5, 6, 7]


def sample(tokens: list[int], **changes: object) -> Rollout:
    count = len(tokens)
    told = {
        "token_ids": tokens,
        "sampled": [True] * count,
        "logprobs": [-1.0] * count,
        "versions": [0] * count,
        "text": "",
        "finish_reason": "stop",
    }
    return Rollout(**told | changes)  # type: ignore[arg-type]


def group(*answers: list[int], prompt: list[int] = PROMPT) -> SampleGroup:
    return SampleGroup(PROBLEM, prompt, [sample(answer) for answer in answers])


def test_the_best_of_a_group_stands_against_its_worst() -> None:
    groups = [group([1], [2], [3], [4]), group([1], [2]), group([1], [2], [3]), group([1])]
    rewards = np.full((4, 4), math.nan)
    rewards[0] = [0.5, 1.0, 0.0, 1.0]
    rewards[1, :2] = [0.7, 0.7]
    rewards[2, 1:3] = [0.2, 0.1]
    rewards[3, 0] = 1.0
    found = [(p.chosen.rollout.token_ids, p.rejected.rollout.token_ids) for p in make_pairs(groups, rewards)]
    assert found == [([2], [3]), ([2], [3])]


def test_answers_of_which_nothing_was_sampled_and_broken_episodes_give_no_pair() -> None:
    empty = SampleGroup(PROBLEM, PROMPT, [sample([]), sample([2], sampled=[False]), sample([3])])
    assert make_pairs([empty], np.array([[1.0, 0.5, 0.0]])) == []
    pieces = SampleGroup(PROBLEM, PROMPT, [sample([1], earlier=(sample([9]),)), sample([2])])
    with pytest.raises(ConfigError, match="several pieces"):
        make_pairs([pieces], np.array([[1.0, 0.0]]))


def moved_by(
    loss: str, steps: int = 6, share: bool = True, budget: int = 256
) -> tuple[float, float, dict[str, float]]:
    """How much likelier the better and the worse answers have become."""
    learner = Learner(tiny_model(), OptimConfig(lr=3e-3, weight_decay=0.0))
    told = PairsConfig(loss=loss)  # type: ignore[arg-type]
    reference = Evaluator(tiny_model()) if told.needs_reference else None
    preference = OnlinePreference(told, reference, budget, share)
    groups = [group([9, 10, 11], [9, 12], [13], prompt=[5, 6, i]) for i in range(4)]
    rewards = np.array([[1.0, 0.5, 0.0]] * 4)
    rows = preference.rows(make_pairs(groups, rewards))
    before = np.concatenate(learner.document_logprobs(rows))
    chosen = np.concatenate([row.facts["chosen"] for row in rows]) > 0
    first: dict[str, float] = {}
    for _ in range(steps):
        found = preference.forward_backward(learner, make_pairs(groups, rewards))
        first = first or found
        learner.optim_step()
    moved = np.concatenate(learner.document_logprobs(rows)) - before
    return float(moved[chosen].mean()), float(moved[~chosen].mean()), first


@pytest.mark.parametrize("loss", ["dpo", "ipo", "simpo", "kto"])
def test_the_better_answers_become_likelier_than_the_worse(loss: str) -> None:
    better, worse, first = moved_by(loss)
    assert better - worse > 0.2
    assert first["pairs"] == 4
    if loss == "dpo":
        assert first["loss"] == pytest.approx(math.log(2), rel=1e-4)


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_how_pairs_are_packed_changes_nothing(loss: str) -> None:
    one = moved_by(loss, steps=2)
    for other in (moved_by(loss, 2, share=False), moved_by(loss, 2, budget=16)):
        assert other[:2] == pytest.approx(one[:2], rel=1e-3, abs=1e-5)
        assert other[2]["loss"] == pytest.approx(one[2]["loss"], rel=1e-4)


def test_what_the_policy_did_not_choose_is_context() -> None:
    learner = Learner(tiny_model(), OptimConfig(lr=1e-3))
    told = sample([9, 10, 11], sampled=[True, False, True])
    groups = [SampleGroup(PROBLEM, PROMPT, [told, sample([12])])]
    preference = OnlinePreference(PairsConfig(loss="simpo"), None, 64)
    (row,) = preference.rows(make_pairs(groups, np.array([[1.0, 0.0]])))
    assert sorted(row.targets.tolist()) == [9, 11, 12]
    preference.forward_backward(learner, make_pairs(groups, np.array([[1.0, 0.0]])))
    assert any(p.grad is not None and torch.any(p.grad != 0) for p in learner.model.parameters())
