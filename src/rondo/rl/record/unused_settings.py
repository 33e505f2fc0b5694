"""Ignored settings: a setting without effect, because another setting is missing, is an error with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from rondo.rl.algorithms import PRESETS

if TYPE_CHECKING:
    from rondo.rl.config import RlConfig


@dataclass(frozen=True)
class IgnoredSettings:
    names: tuple[str, ...]
    when: Callable[[RlConfig], bool]
    why: str


OF_ANOTHER = (
    IgnoredSettings(
        ("kl_estimator", "kl_in", "kl_unbiased"),
        lambda c: not c.kl,
        "is of the divergence, and kl is 0: set kl",
    ),
    IgnoredSettings(("kl_horizon",), lambda c: not c.kl_target, "is for kl_target, which is 0: set that"),
    IgnoredSettings(
        ("correction_level", "correction_cap", "correction_floor"),
        lambda c: c.correction == "none",
        "is of a correction, and there is none: set correction",
    ),
    IgnoredSettings(("overlong_penalty",), lambda c: not c.overlong, "is for overlong, which is 0: set that"),
    IgnoredSettings(
        ("gae_lambda",), lambda c: c.advantage != "gae", "is of advantage gae: take algorithm ppo"
    ),
    IgnoredSettings(
        ("clip_low", "clip_high", "ratio"),
        lambda c: c.surrogate == "reinforce",
        "means nothing to surrogate reinforce, which has no ratios: take clip or cispo",
    ),
    IgnoredSettings(("max_staleness",), lambda c: c.mode != "async", "is for mode async: set that"),
    IgnoredSettings(
        ("lr_end",), lambda c: c.decay == "constant", "is where a decay ends, and there is none: set decay"
    ),
    IgnoredSettings(("momentum",), lambda c: c.optimizer != "muon", "is for optimizer muon: set that"),
    IgnoredSettings(
        ("offload_to",), lambda c: c.offload == "none", "is for offload, which is none: set that"
    ),
    IgnoredSettings(
        ("rollouts.max_bytes",),
        lambda c: not c.rollouts.keep,
        "is for what rollouts.keep keeps, which is 0: set that",
    ),
    IgnoredSettings(("metrics.host",), lambda c: c.metrics.port is None, "is for metrics.port: set that"),
    IgnoredSettings(
        (
            *("engine.transport", "engine.deltas", "engine.folder", "engine.wait", "engine.directory"),
            "engine.weights",
        ),
        lambda c: not (c.engine.url or c.ray.engines),
        "is of engines in other processes: set engine.url",
    ),
    IgnoredSettings(
        ("engine.directory",),
        lambda c: c.engine.transport == "folder",
        "is of versions in shared memory: set engine.transport to auto, shm, http or a store",
    ),
    IgnoredSettings(
        ("engine.deltas",),
        lambda c: c.engine.transport not in ("auto", "http"),
        "is of weights over HTTP: set engine.transport to http or auto",
    ),
    IgnoredSettings(
        ("engine.folder",),
        lambda c: c.engine.transport not in ("auto", "folder"),
        "is of weights in folders: set engine.transport to folder or auto",
    ),
    IgnoredSettings(
        ("block_size",),
        lambda c: bool(c.engine.url or c.ray.engines),
        "is of an engine in this process: it is theirs to say (rondo serve --engine.block_size)",
    ),
    IgnoredSettings(
        ("ray.address", "ray.cpus", "ray.gpus", "ray.serve"),
        lambda c: not c.ray.engines,
        "is of roles that Ray places: set ray.engines",
    ),
    IgnoredSettings(("adapter.r",), lambda c: c.adapter.kind == "none", "is of an adapter: set adapter.kind"),
    IgnoredSettings(
        ("adapter.alpha", "adapter.targets"),
        lambda c: c.adapter.kind != "lora",
        "is for adapter.kind lora: set that",
    ),
    IgnoredSettings(
        ("adapter.heads",),
        lambda c: c.adapter.kind != "tokenformer",
        "is for adapter.kind tokenformer: set that",
    ),
    IgnoredSettings(
        ("reward_model.weight",),
        lambda c: not c.reward_model.model,
        "is of a reward model: set reward_model.model",
    ),
    IgnoredSettings(
        ("distill.weight", "distill.discount", "distill.reward"),
        lambda c: not c.distill.teacher,
        "is of distillation: set distill.teacher",
    ),
    IgnoredSettings(
        ("pairs.beta",), lambda c: c.pairs.loss == "none", "is of preference training: set pairs.loss"
    ),
    IgnoredSettings(("pairs.gamma",), lambda c: c.pairs.loss != "simpo", "is for pairs.loss simpo: set that"),
    IgnoredSettings(
        ("pairs.good_weight", "pairs.bad_weight"),
        lambda c: c.pairs.loss != "kto",
        "is for pairs.loss kto: set that",
    ),
)
"""Rules for explicit settings; values from the algorithm's preset are accepted."""

ADVANTAGES = ("advantage", "normalise", "gamma", "gae_lambda", "critic.kind")
LOSS = (
    *("aggregate", "ratio", "surrogate", "clip_low", "clip_high", "dual_clip", "entropy", "measure_entropy"),
    *("kl", "kl_estimator", "kl_in", "kl_unbiased", "kl_target", "kl_horizon", "distill.teacher"),
    *("correction", "correction_level", "correction_cap", "correction_floor"),
)
REWARD = ("overlong", "overlong_penalty", "dynamic_sampling", "reward_model.model")
TEACHER = "is of the task's reward, and the teacher alone is learned from: set distill.reward"

WHOLE_PARTS = (
    IgnoredSettings(
        (*ADVANTAGES, *LOSS),
        lambda c: c.pairs.loss != "none",
        "is of the policy's loss, whose place pairs.loss takes: take algorithm online_dpo",
    ),
    IgnoredSettings((*ADVANTAGES, *REWARD), lambda c: not c.learns_from_reward, TEACHER),
    IgnoredSettings(("kl",), lambda c: not c.learns_from_reward and c.kl_in == "reward", TEACHER),
)
"""Rules for values from the algorithm's preset too, because such an algorithm is the wrong choice."""


def ignored(config: RlConfig) -> Iterator[str]:
    own = PRESETS[config.algorithm]
    for idle in WHOLE_PARTS:
        for name in _given(config, idle, {}):
            by = "" if name in _given(config, idle, own) else f", which algorithm {config.algorithm} sets,"
            yield f"{name}{by} {idle.why}, or leave {name} out"
    for idle in OF_ANOTHER:
        for name in _given(config, idle, own):
            yield f"{name} {idle.why}, or leave {name} out"


def _given(config: RlConfig, idle: IgnoredSettings, preset: Mapping[str, Any]) -> list[str]:
    """The rule's settings that differ from both the preset and the defaults."""
    if not idle.when(config):
        return []
    return [name for name in idle.names if _value(config, name) != _default(config, name, preset)]


def _value(config: RlConfig, name: str) -> Any:
    return reduce(getattr, name.split("."), config)


def _default(config: RlConfig, name: str, preset: Mapping[str, Any]) -> Any:
    *sections, field = name.split(".")
    inner = reduce(lambda found, section: found.get(section, {}), sections, preset)
    fields = type(reduce(getattr, sections, config)).model_fields
    return inner.get(field, fields[field].default)
