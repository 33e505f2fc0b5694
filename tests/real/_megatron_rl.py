"""RL with Megatron-Core's layers beside the native learner: run by pytest in an environment that has Megatron-Core."""

from typing import Any

import pytest

from rl.ranks._steps import Steps, on_ranks, steps_of
from rl.ranks.test_steps_on_ranks import PPO, RATIO, SEVERAL, same
from support.launch import launch

SETTINGS: dict[str, dict[str, Any]] = {"grpo": SEVERAL, "ppo": PPO}
MEGATRON = {"learner": "megatron"}


@pytest.fixture(scope="module")
def native() -> dict[str, Steps]:
    return {name: steps_of(settings, {}) for name, settings in SETTINGS.items()}


def check(ours: Steps, one: Steps) -> None:
    same(ours, one, "megatron")
    assert ours.weights.keys() == one.weights.keys()
    for first in ours.first:
        assert abs(first["ratio_max"] - 1) < RATIO


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_is_the_native_learners(name: str, native: dict[str, Steps]) -> None:
    check(steps_of(SETTINGS[name] | MEGATRON, {}), native[name])


@pytest.mark.parametrize("layout", [{"tp": 2}, {"dp": 2, "zero": 0}, {"dp": 2, "zero": 1}, {"pp": 2}])
def test_two_ranks_are_as_one_native_process(layout: dict[str, Any], native: dict[str, Steps]) -> None:
    cases = [(layout, settings | MEGATRON, {}) for settings in SETTINGS.values()]
    for of_rank in launch(on_ranks, 2, cases, backend=None, seconds=300):
        for ours, one in zip(of_rank, native.values(), strict=True):
            check(ours, one)
