"""No setting of an RL job is silently without effect."""

from typing import Any

import pytest
from pydantic import ValidationError

from rondo.base.errors import ConfigError
from rondo.rl.config import RlConfig
from rondo.rl.record.unused_settings import ADVANTAGES, LOSS, OF_ANOTHER, REWARD
from rondo.rl.tasks.registry import find

ALONE: dict[str, tuple[Any, str]] = {
    "metrics.host": ("0.0.0.0", "is for metrics.port: set that"),
    "kl_estimator": ("k2", "set kl"),
    "kl_in": ("reward", "set kl"),
    "kl_unbiased": (True, "set kl"),
    "kl_horizon": (5.0, "kl_target"),
    "correction_level": ("sequence", "set correction"),
    "correction_cap": (2.0, "set correction"),
    "correction_floor": (0.5, "set correction"),
    "overlong_penalty": (0.5, "overlong"),
    "gae_lambda": (0.5, "take algorithm ppo"),
    "max_staleness": (3, "mode async"),
    "lr_end": (0.5, "set decay"),
    "momentum": (0.5, "optimizer muon"),
    "offload_to": ("there", "offload"),
    "adapter.r": (4, "set adapter.kind"),
    "adapter.alpha": (4.0, "adapter.kind lora"),
    "adapter.targets": ("q_proj", "adapter.kind lora"),
    "adapter.heads": (2, "adapter.kind tokenformer"),
    "reward_model.weight": (0.5, "set reward_model.model"),
    "distill.weight": (0.5, "set distill.teacher"),
    "distill.discount": (0.5, "set distill.teacher"),
    "distill.reward": (True, "set distill.teacher"),
    "engine.transport": ("http", "set engine.url"),
    "engine.deltas": (True, "set engine.url"),
    "engine.folder": ("there", "set engine.url"),
    "engine.wait": (9.0, "set engine.url"),
    "engine.directory": ("etcd://there:2379", "set engine.url"),
    "engine.weights": ({"threads": 3}, "set engine.url"),
    "ray.address": ("there", "set ray.engines"),
    "ray.cpus": (2.0, "set ray.engines"),
    "ray.gpus": (1.0, "set ray.engines"),
    "ray.serve": (("--engine.threads=1",), "set ray.engines"),
    "pairs.beta": (0.5, "set pairs.loss"),
    "pairs.gamma": (0.5, "pairs.loss simpo"),
    "pairs.good_weight": (0.5, "pairs.loss kto"),
    "pairs.bad_weight": (0.5, "pairs.loss kto"),
}
"""What each needs that is off by default."""
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"surrogate": "reinforce", "clip_low": 0.1}, "clip_low means nothing to surrogate reinforce"),
    ({"surrogate": "reinforce", "clip_high": 0.1}, "clip_high means nothing to surrogate reinforce"),
    ({"surrogate": "reinforce", "ratio": "sequence"}, "ratio means nothing to surrogate reinforce"),
    ({"rollouts": {"keep": 0, "max_bytes": 5}}, "rollouts.max_bytes is for what rollouts.keep keeps"),
    ({"algorithm": "ppo", "critic": {"warmup": 9}, "steps": 9}, "leaves the policy none of 9 steps"),
    (
        {"engine": {"url": ["http://a"], "transport": "folder", "directory": "etcd://there:2379"}},
        "engine.directory is of versions in shared memory",
    ),
    ({"pairs": {"loss": "dpo", "gamma": 0.5}}, "pairs.gamma is for pairs.loss simpo"),
    (
        {"engine": {"url": ["http://127.0.0.1:1"]}, "block_size": 1},
        "block_size is of an engine in this process",
    ),
    ({"adapter": {"kind": "tokenformer", "alpha": 4.0}}, "adapter.alpha is for adapter.kind lora"),
]
POLICYS: dict[str, Any] = {
    "advantage": "returns",
    "normalise": "mean",
    "aggregate": "sequence",
    "ratio": "sequence",
    "surrogate": "cispo",
    "clip_low": 0.1,
    "clip_high": 0.1,
    "dual_clip": 3.0,
    "entropy": 0.1,
    "measure_entropy": True,
    "kl": 0.1,
    "kl_estimator": "k2",
    "kl_in": "reward",
    "kl_unbiased": True,
    "gae_lambda": 0.5,
    "distill": {"teacher": "other"},
    "correction": "mask",
    "correction_level": "sequence",
    "correction_cap": 2.0,
    "correction_floor": 0.5,
}
TASKS: dict[str, Any] = {
    "normalise": "mean",
    "overlong": 0.2,
    "dynamic_sampling": 2,
    "reward_model": {"model": "judge"},
}
TEACHER = {"distill": {"teacher": "other"}}


def settings(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RlConfig(**given)
    assert said in str(caught.value)


def test_what_is_of_something_that_is_off_is_refused_with_what_to_set() -> None:
    for name, (value, said) in ALONE.items():
        refused(settings(name, value), f"{name} is")
        refused(settings(name, value), said)
    for given, said in OTHERS:
        refused(given, said)
    tried = {*ALONE, "block_size", "clip_low", "clip_high", "ratio", "rollouts.max_bytes"}
    assert tried == {name for idle in OF_ANOTHER for name in idle.names}


def test_pairs_take_nothing_of_the_policys_loss() -> None:
    for name, value in POLICYS.items():
        refused({name: value, "pairs": {"loss": "dpo"}}, name)
    refused(
        {"algorithm": "ppo", "pairs": {"loss": "dpo"}}, "which algorithm ppo sets, is of the policy's loss"
    )
    refused({"algorithm": "dapo", "pairs": {"loss": "dpo"}}, "take algorithm online_dpo")
    others = {"gamma", "kl_target", "kl_horizon", "critic.kind", "distill.teacher"}
    assert {*ADVANTAGES, *LOSS} == {*POLICYS, *others} - {"distill"}, (
        "the others are refused without pairs too"
    )
    RlConfig(
        algorithm="online_dpo", epochs=2, overlong=0.2, max_tokens=20, dynamic_sampling=2, temperature=0.9
    )


def test_a_teacher_alone_takes_nothing_of_the_tasks_reward() -> None:
    for name, value in TASKS.items():
        refused({name: value, **TEACHER}, "is of the task's reward, and the teacher alone is learned from")
        RlConfig(**{name: value, "distill": {"teacher": "other", "reward": True}})
    refused({"algorithm": "ppo", **TEACHER}, "which algorithm ppo sets, is of the task's reward")
    refused({"kl": 0.1, "kl_in": "reward", **TEACHER}, "kl is of the task's reward")
    assert {name.partition(".")[0] for name in REWARD} == {*TASKS, "overlong_penalty"} - {"normalise"}
    RlConfig(**TEACHER, kl=0.1, clip_high=0.3, aggregate="sequence", samples_per_prompt=1)


def test_what_the_algorithm_itself_sets_may_stand_without_effect() -> None:
    assert RlConfig(algorithm="reinforce++").kl_in == "reward"
    assert RlConfig(algorithm="dapo", surrogate="reinforce").clip_high == 0.28
    refused({"algorithm": "reinforce++", "kl_estimator": "k2"}, "kl_estimator is of the divergence")


def test_settings_of_files_are_refused_for_other_tasks() -> None:
    with pytest.raises(ConfigError, match="max_broken counts lines of a file") as caught:
        find("reverse", max_broken=3)
    assert caught.value.param == "rl.max_broken"
