"""Presets, and combinations that are refused with the reason."""

from typing import Any

import pytest
from pydantic import ValidationError

from rondo.base.errors import ConfigError
from rondo.base.settings.config import load
from rondo.cli.options.tree import RondoConfig
from rondo.rl.algorithms import PRESETS
from rondo.rl.config import RlConfig
from rondo.rl.update.objective import policy_loss
from rondo.train.losses.policy import Correction, PolicyLoss


@pytest.mark.parametrize("name", PRESETS)
def test_each_algorithm_is_a_valid_config_that_makes_a_loss(name: str) -> None:
    config = RlConfig(algorithm=name)
    found = config.model_dump()
    for field, value in PRESETS[name].items():
        assert found[field] == value or found[field].items() >= value.items()
    assert isinstance(policy_loss(config), PolicyLoss)


def test_grpo_is_what_the_defaults_are() -> None:
    assert RlConfig(algorithm="grpo") == RlConfig()
    assert policy_loss(RlConfig()) == PolicyLoss()


def test_what_a_user_sets_wins_over_the_algorithm_from_every_source(tmp_path: Any) -> None:
    assert RlConfig(algorithm="dapo", clip_high=0.3).clip_high == 0.3
    file = tmp_path / "rl.toml"
    file.write_text('[rl]\nalgorithm = "gspo"\nclip_low = 0.001\n')
    loaded = load(RondoConfig, file, {"RONDO_RL_AGGREGATE": "token"}, ["--rl.clip_high=0.002"])
    tree = loaded.tree.rl
    assert str(loaded.sources["rl.ratio"]) == "algorithm gspo"
    assert str(loaded.sources["rl.clip_high"]) == "--rl.clip_high"
    assert str(loaded.sources["rl.dual_clip"]) == "default"
    assert (tree.algorithm, tree.ratio) == ("gspo", "sequence")
    assert (tree.clip_low, tree.clip_high, tree.aggregate) == (0.001, 0.002, "token")
    assert RlConfig.model_validate(tree.model_dump()) == tree


def test_an_unknown_algorithm_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"there is no algorithm 'grop'.*dr_grpo"):
        load(RondoConfig, None, {}, ["--rl.algorithm=grop"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"advantage": "leave_one_out"}, "normalise std is not for advantage leave_one_out"),
        ({"algorithm": "ppo", "normalise": "mean"}, "take none or batch"),
        ({"samples_per_prompt": 1}, "samples_per_prompt is 1"),
        ({"gamma": 0.9}, "gamma discounts"),
        ({"algorithm": "reinforce++", "dynamic_sampling": 2}, "those teach too"),
        ({"overlong": 0.05, "max_tokens": 10}, "not even one token"),
        ({"algorithm": "ppo", "ratio": "sequence"}, "take ratio token"),
        ({"surrogate": "cispo", "ratio": "product"}, "which weighs tokens"),
        ({"surrogate": "reinforce", "epochs": 2}, "epochs 2"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, "bound of surrogate clip"),
        ({"dual_clip": 1.1}, "take more than 1.2"),
        ({"kl_target": 0.1}, "kl_target steers kl"),
        ({"kl": 0.1, "kl_estimator": "k1"}, "its gradient is 0"),
        ({"algorithm": "rloo", "kl_unbiased": True}, "kl_unbiased is of a divergence in the loss"),
        ({"correction": "mask", "correction_cap": 0.5}, "leave out 1"),
        ({"correction_floor": 4.0}, "above correction_cap"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RlConfig(**changes)


def test_the_same_with_what_was_missing_is_accepted() -> None:
    RlConfig(algorithm="reinforce++", samples_per_prompt=1)
    RlConfig(kl=0.1, kl_estimator="k1", kl_unbiased=True)
    RlConfig(kl=0.1, kl_estimator="k1", kl_in="reward")
    RlConfig(algorithm="ppo", gamma=0.9)


def test_what_a_config_needs_follows_from_it() -> None:
    assert not RlConfig().needs_reference
    assert not RlConfig().needs_old
    assert not RlConfig().every_group_counts
    assert RlConfig(kl=0.1).needs_reference
    assert RlConfig(kl=0.1).every_group_counts
    assert RlConfig(entropy=0.01).every_group_counts
    assert RlConfig(algorithm="rloo", kl=0.1).needs_old
    assert not RlConfig(correction="mask").needs_old
    assert RlConfig(correction="mask", minibatches=2).needs_old
    assert RlConfig(algorithm="ppo").every_group_counts


def test_the_loss_is_what_the_config_says() -> None:
    config = RlConfig(
        kl=0.1,
        kl_estimator="k2",
        kl_unbiased=True,
        dual_clip=3.0,
        correction="mask",
        correction_level="sequence",
        correction_cap=2.0,
        correction_floor=0.5,
        entropy=0.01,
    )
    correction = Correction("mask", "sequence", 2.0, 0.5)
    wanted = PolicyLoss(
        kl=0.1, kl_estimator="k2", kl_unbiased=True, dual_clip=3.0, correction=correction, entropy=0.01
    )
    assert policy_loss(config) == wanted
    assert policy_loss(config, kl=0.2).kl == 0.2
    assert policy_loss(RlConfig(algorithm="rloo", kl=0.1)).kl == 0.0
