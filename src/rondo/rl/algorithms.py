"""Algorithm presets: settings of each named algorithm, and checks for contradictory settings.

docs/algorithms.md has the formulas and the papers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rondo.rl.config import RlConfig

Advantage = Literal["group", "leave_one_out", "returns", "gae"]
Normalise = Literal["std", "mean", "none", "batch"]
Aggregate = Literal["token", "sequence", "constant"]

PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"normalise": "mean", "aggregate": "constant"},
    "dapo": {"clip_high": 0.28, "overlong": 0.2, "dynamic_sampling": 4},
    "rloo": {
        "advantage": "leave_one_out",
        "normalise": "mean",
        "ratio": "product",
        "aggregate": "sequence",
        "kl_in": "reward",
        "kl_estimator": "k1",
    },
    "reinforce++": {"advantage": "returns", "normalise": "batch", "kl_in": "reward", "kl_estimator": "k1"},
    "reinforce++-baseline": {"normalise": "batch", "kl_estimator": "k2"},
    "gspo": {"ratio": "sequence", "aggregate": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0},
    "ppo": {
        "advantage": "gae",
        "normalise": "batch",
        "kl_in": "reward",
        "kl_estimator": "k1",
        "critic": {"kind": "separate"},
    },
    "online_dpo": {"pairs": {"loss": "dpo"}},
}
"""Presets by name. Unlisted settings are as in grpo, whose settings are the config's defaults."""

NORMALISED: dict[Advantage, tuple[Normalise, ...]] = {
    "group": ("std", "mean", "batch"),
    "leave_one_out": ("mean", "batch"),
    "returns": ("none", "batch"),
    "gae": ("none", "batch"),
}
"""Valid normalizations of each advantage."""


def with_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's settings, merged over the preset of the chosen algorithm."""
    name = given.get("algorithm", "grpo")
    if name not in PRESETS:
        raise ValueError(f"there is no algorithm {name!r}. Algorithms: {', '.join(PRESETS)}")
    preset = PRESETS[name]
    inner = {
        section: {**settings, **given[section]}
        for section, settings in preset.items()
        if isinstance(settings, dict) and isinstance(given.get(section), dict)
    }
    return {**preset, **given, **inner}


def contradictions(config: RlConfig) -> Iterator[str]:
    """Contradictory settings, each with its remedy."""
    yield from _of_advantages(config)
    yield from _of_ratios(config)
    yield from _of_divergences(config)
    yield from _of_corrections(config)
    yield from _of_models(config)
    if config.engine.url and config.ray.engines:
        yield "engine.url says where engines are, and ray.engines that Ray starts some: leave one of them out"


def _of_advantages(config: RlConfig) -> Iterator[str]:
    possible = NORMALISED[config.advantage]
    if config.normalise not in possible:
        yield f"normalise {config.normalise} is not for advantage {config.advantage}: take {' or '.join(possible)}"
    alone = config.samples_per_prompt < 2 and config.learns_from_reward
    if config.advantage in ("group", "leave_one_out") and alone:
        yield (
            f"advantage {config.advantage} sets a sample beside others of its prompt, but samples_per_prompt is "
            f"{config.samples_per_prompt}: take 2 or more, or algorithm reinforce++"
        )
    if config.gamma != 1 and config.advantage not in ("returns", "gae"):
        yield f"gamma discounts later rewards, but advantage {config.advantage} is one of whole answers: leave it at 1"
    if config.dynamic_sampling and config.advantage not in ("group", "leave_one_out"):
        yield (
            f"dynamic_sampling leaves out groups whose samples all earned the same, but with advantage "
            f"{config.advantage} those teach too: leave it at 0"
        )
    if config.overlong and config.max_tokens is not None and config.overlong * config.max_tokens < 1:
        yield f"overlong {config.overlong} of max_tokens {config.max_tokens} is not even one token: raise either"


def _of_ratios(config: RlConfig) -> Iterator[str]:
    if config.ratio != "token" and config.advantage in ("returns", "gae"):
        yield (
            f"ratio {config.ratio} is one of whole answers, but advantage {config.advantage} is one of tokens: "
            "take ratio token"
        )
    if config.surrogate != "clip" and config.ratio == "product":
        yield f"ratio product is not for surrogate {config.surrogate}, which weighs tokens: take ratio token"
    if config.surrogate == "reinforce" and config.epochs * config.minibatches > 1:
        yield (
            "surrogate reinforce takes what is learned from as sampled by the present weights, but "
            f"epochs {config.epochs} and minibatches {config.minibatches} change them on the way: take clip or cispo"
        )
    if config.dual_clip:
        if config.surrogate != "clip":
            yield f"dual_clip is a bound of surrogate clip, and surrogate is {config.surrogate}: leave it at 0"
        if config.dual_clip <= 1 + config.clip_high:
            yield (
                f"dual_clip {config.dual_clip} bounds ratios that clip_high {config.clip_high} lets pass: "
                f"take more than {1 + config.clip_high:g}, 3 say"
            )


def _of_divergences(config: RlConfig) -> Iterator[str]:
    if config.kl_target and not config.kl:
        yield "kl_target steers kl, which is 0: set kl to where it is to begin, 0.05 say"
    if config.kl_unbiased and config.kl_in == "reward":
        yield "kl_unbiased is of a divergence in the loss, and kl_in is reward, which has no gradient: leave it out"
    if config.kl and config.kl_in == "loss" and config.kl_estimator == "k1" and not config.kl_unbiased:
        yield (
            "kl_estimator k1 in the loss draws to nowhere, for its gradient is 0 on average: take k2 or k3, "
            "kl_unbiased, or kl_in reward"
        )


def _of_corrections(config: RlConfig) -> Iterator[str]:
    if config.correction_floor > config.correction_cap:
        yield f"correction_floor {config.correction_floor} is above correction_cap {config.correction_cap}"
    if config.correction != "none" and not config.correction_floor <= 1 <= config.correction_cap:
        yield (
            f"correction_floor {config.correction_floor} and correction_cap {config.correction_cap} leave out 1, "
            "the weight of what sampler and learner agree on: take bounds around it"
        )


def _of_models(config: RlConfig) -> Iterator[str]:
    critic, pairs = config.critic.kind, config.pairs.loss
    if config.advantage == "gae" and critic == "none":
        yield "advantage gae is what a critic did not expect: set critic.kind to separate or shared"
    if config.advantage != "gae" and critic != "none":
        yield f"critic.kind is {critic}, but advantage {config.advantage} asks no critic: take algorithm ppo"
    if pairs != "none" and config.minibatches > 1:
        yield f"pairs.loss {pairs} learns from all pairs of a step at once: leave minibatches at 1"
    if config.critic.warmup >= config.steps:
        yield f"critic.warmup {config.critic.warmup} leaves the policy none of {config.steps} steps: take fewer"
    if config.device_bytes and config.device == "cpu":
        yield "device_bytes is for a GPU: on a CPU all models stay where they are, leave it at 0"
