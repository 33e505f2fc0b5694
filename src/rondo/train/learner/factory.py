"""Choice of the learner of a job."""

from __future__ import annotations

from typing import Literal

from rondo.base.errors import ConfigError
from rondo.models import ModelConfig
from rondo.parallel.layout.degrees import Degrees
from rondo.train.config import AdapterConfig, Kind, OptimConfig
from rondo.train.learner.learner import Learner

LearnerName = Literal["native", "megatron"]


def check(
    learner: LearnerName,
    kind: Kind,
    config: OptimConfig,
    adapter: AdapterConfig,
    model: ModelConfig,
    degrees: Degrees,
) -> None:
    """Raises if the learner does not support the job, before a learner is built."""
    if learner == "native":
        return
    from rondo.train.megatron.check import check as check_model
    from rondo.train.megatron.check import check_installed

    if kind == "reward" or adapter.kind != "none":
        what = "a reward model" if kind == "reward" else "an adapter"
        raise ConfigError(
            f"train.learner: megatron does not train {what}. Use native.", param="train.learner"
        )
    if config.router_aux_loss:
        raise ConfigError(
            "train.router_aux_loss: the megatron learner has no load-balancing loss. Leave it out, or use native.",
            param="train.router_aux_loss",
        )
    check_model(model, config, degrees)
    check_installed()


def learner_of(name: LearnerName) -> type[Learner]:
    if name == "native":
        return Learner
    from rondo.train.megatron.learner import MegatronLearner

    return MegatronLearner
