"""Checks of an RL config for a number of ranks, before a model is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rondo.base.errors import ConfigError
from rondo.models import ModelConfig
from rondo.parallel.layout.degrees import Degrees, degrees
from rondo.rl.config import RlConfig
from rondo.rl.rollout.engines import synchronous
from rondo.rl.tasks.types import AnyTask
from rondo.train.learner.factory import check


def check_ranks(config: RlConfig, task: AnyTask, model: ModelConfig, ranks: int) -> None:
    """Raises if the layout does not fit the ranks or the model, or if a setting is for a single process."""
    try:
        found = degrees(config.layout, ranks, model)
        check(config.learner, "sft", config, config.adapter, model, found)
    except ConfigError as error:
        raise _of_rl(error) from None
    if ranks == 1:
        return
    for name, reason in _refused(config, task, found):
        raise ConfigError(f"rl.{name}: {reason}.", param=f"rl.{name}")


def _of_rl(error: ConfigError) -> ConfigError:
    """The error with the section of this job's settings."""
    param = (error.param or "").replace("train.", "rl.", 1)
    return ConfigError(re.sub(r"\btrain\.", "rl.", error.message), param=param)


def _refused(config: RlConfig, task: AnyTask, found: Degrees) -> Iterator[tuple[str, str]]:
    """Settings that several ranks do not support, each with the reason and the remedy."""
    if config.ray.engines:
        yield (
            "ray.engines",
            "Ray places one learner process. Start it without a launcher, or set rl.engine.url",
        )
    if config.device_bytes:
        yield "device_bytes", "models of several ranks are sharded instead of taking turns. Leave it at 0"
    if config.dynamic_sampling and config.reward_model.model and not synchronous(config, task):
        yield (
            "dynamic_sampling",
            "the first rank resamples groups alone, and the reward model is divided over all ranks. Leave it at 0, "
            "or use rl.mode=sync with single answers",
        )
    if config.critic.kind == "shared" and found.tp * found.pp * found.cp > 1:
        yield "critic.kind", "a shared critic needs tp, pp and cp of 1. Use separate"
