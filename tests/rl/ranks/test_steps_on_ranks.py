"""RL steps on several ranks are those of one process: samples, losses, gradients and weights."""

from typing import Any

import pytest
import torch

from rl.ranks._steps import STEPS, Steps, on_ranks, steps_of
from support.launch import fork
from support.tiny import TINY_MOE

Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
PPO = {"algorithm": "ppo", "minibatches": 2}
SEVERAL = {"minibatches": 2, "epochs": 2, "kl": 0.1}
TWO: list[Case] = [
    ({"zero": 3}, SEVERAL, {}),
    ({"zero": 1}, PPO, {}),
    ({"tp": 2}, PPO, {}),
    ({"pp": 2}, PPO | {"rollout_ranks": "all"}, {}),
    ({"cp": 2}, SEVERAL, {}),
    ({"ep": 2}, {}, TINY_MOE),
]
FOUR: list[Case] = [
    ({"zero": 3}, PPO, {}),
    ({"zero": 1, "dp_replicate": 2}, SEVERAL, {}),
    ({"tp": 2}, SEVERAL, {}),
    ({"pp": 2}, SEVERAL, {}),
    ({"cp": 2, "cp_method": "ring"}, PPO, {}),
    ({"ep": 2}, PPO, TINY_MOE),
    ({"tp": 2, "pp": 2}, PPO, {}),
]
ALGORITHMS: list[Case] = [
    ({"zero": 3}, {"algorithm": "dr_grpo"}, {}),
    ({"zero": 3}, {"algorithm": "dapo"}, {}),
    ({"zero": 3}, {"algorithm": "rloo", "kl": 0.1}, {}),
    ({"zero": 3}, {"algorithm": "reinforce++", "kl": 0.1}, {}),
    ({"zero": 3}, {"algorithm": "reinforce++-baseline", "kl": 0.1, "kl_target": 0.01}, {}),
    ({"zero": 3}, {"algorithm": "gspo"}, {}),
    ({"zero": 3}, {"algorithm": "cispo", "entropy": 0.01}, {}),
    ({"zero": 3}, {"algorithm": "ppo", "critic": {"kind": "shared", "warmup": 1}}, {}),
    ({"zero": 3}, {"algorithm": "online_dpo"}, {}),
    ({"zero": 3}, {"pairs": {"loss": "kto"}}, {}),
    ({"zero": 3}, {"reward_model": {"weight": 0.5}}, {}),
    ({"zero": 3}, {"distill": {"weight": 0.5, "reward": True}}, {}),
    ({"zero": 3}, {"adapter": {"kind": "lora", "r": 4}, "kl": 0.1}, {}),
    ({"zero": 3}, {"checkpointing": "full", "logits": "chunked"}, {}),
    ({"zero": 3}, {"offload": "optimizer"}, {}),
    ({"zero": 3}, {"rollout_ranks": "first"}, {}),
    ({"zero": 3}, {"ema": 0.9, "optimizer": "muon"}, {}),
    ({"tp": 2}, {"reward_model": {"weight": 0.5}, "distill": {"reward": True}}, {}),
    ({"pp": 2}, {"algorithm": "online_dpo"}, {}),
]
HEAVY = ("torch.distributed.fsdp", "rondo.parallel.apply", "rondo.rl.rollout.rank_collectors")
"""What ranks would import by themselves when they come to it."""
TOLERANCE = 5e-6
"""Of weights after all steps, whose learning rate is 1e-2, and of gradients."""
RATIO = 5e-6
"""Of the importance ratio in the first mini-batch, with divided products."""


def check(ranks: int, cases: list[Case], steps: int = STEPS) -> None:
    for_ranks = fork(on_ranks, ranks, cases, steps, imports=HEAVY, seconds=300)
    for i, (layout, settings, changes) in enumerate(cases):
        one = steps_of(settings, changes, steps=steps)
        found = [of_rank[i] for of_rank in for_ranks]
        for ours in found:
            same(ours, one, f"{layout} {settings}")
            if not layout.keys() & {"tp", "pp", "cp", "ep"} and "ratio_max" in ours.first[0]:
                assert all(first["ratio"] == first["ratio_max"] == 1.0 for first in ours.first), layout
            for first in ours.first:
                assert abs(first.get("ratio_max", 1.0) - 1) < RATIO, layout
            assert ours.weights.keys() == one.weights.keys()


def same(ours: Steps, one: Steps, where: str) -> None:
    assert ours.tokens == one.tokens, where
    assert ours.held_out == pytest.approx(one.held_out, abs=1e-9)
    for mine, its in zip(ours.metrics, one.metrics, strict=True):
        for name in ("reward", "loss", "grad_norm", "updates", "tokens", "critic/loss", "reference_kl", "kl"):
            if name in its:
                assert mine[name] == pytest.approx(its[name], abs=TOLERANCE, rel=1e-4), f"{where}: {name}"
    for name, gradient in ours.gradients.items():
        torch.testing.assert_close(
            gradient, one.gradients[name], atol=TOLERANCE, rtol=1e-4, msg=f"{where}: {name}"
        )
    for name, weight in ours.weights.items():
        torch.testing.assert_close(
            weight, one.weights[name], atol=TOLERANCE, rtol=1e-4, msg=f"{where}: {name}"
        )


def test_two_ranks_are_as_one() -> None:
    check(2, TWO, steps=5)


@pytest.mark.long
def test_four_ranks_are_as_one() -> None:
    check(4, FOUR)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, len(ALGORITHMS), 5))
def test_every_algorithm_is_the_same_on_two_ranks(first: int) -> None:
    check(2, ALGORITHMS[first : first + 5])
