"""OpenAI's fine-tuning jobs: fields of a request, and the job that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rondo.base.errors import InvalidRequest
from rondo.jobs.spec import JobKind

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
ORGANIZATION = "rondo"
DEFAULT_SEED = 42


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Hyperparameters(Strict):
    batch_size: Auto | PositiveInt = "auto"
    """Examples of a step; of prompts, in reinforcement."""
    learning_rate_multiplier: Auto | PositiveFloat = "auto"
    n_epochs: Auto | PositiveInt = "auto"


class DpoHyperparameters(Hyperparameters):
    beta: Auto | PositiveFloat = "auto"


class ReinforcementHyperparameters(Hyperparameters):
    compute_multiplier: Auto | PositiveFloat = "auto"
    """Samples of each prompt, as a multiple of the default."""
    eval_interval: Auto | PositiveInt = "auto"
    eval_samples: Auto | PositiveInt = "auto"
    reasoning_effort: Literal["default"] = "default"
    """Other values are an error: models of this machine have no such control in training."""


class Supervised(Strict):
    hyperparameters: Hyperparameters = Hyperparameters()


class DpoMethod(Strict):
    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class Reinforcement(Strict):
    grader: dict[str, Any]
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()
    response_format: dict[str, Any] | None = None


class Method(Strict):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: DpoMethod | None = None
    reinforcement: Reinforcement | None = None


class WandbIntegration(Strict):
    project: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    entity: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None
    tags: list[Annotated[str, Field(min_length=1, max_length=64)]] | None = Field(None, max_length=32)


class Integration(Strict):
    type: Literal["wandb"]
    wandb: WandbIntegration


class NewFineTuningJob(Strict):
    """A fine-tuning job of OpenAI's API. It trains a LoRA, whose model answers as soon as the job has succeeded."""

    model: str = Field(min_length=1, max_length=256)
    training_file: str = Field(min_length=1, max_length=256)
    validation_file: str | None = None
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    """Deprecated by OpenAI: of the method supervised."""
    suffix: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    metadata: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(default=None, max_length=16)
    integrations: list[Integration] | None = None


KINDS: Mapping[str, JobKind] = {"supervised": "sft", "dpo": "preference", "reinforcement": "rl"}


def method_of(wanted: NewFineTuningJob) -> Method:
    """The method with its hyperparameters; without one, a supervised one."""
    method = wanted.method or Method(type="supervised")
    if wanted.hyperparameters is not None and method.type == "supervised" and method.supervised is None:
        return Method(type="supervised", supervised=Supervised(hyperparameters=wanted.hyperparameters))
    if wanted.hyperparameters is not None:
        raise InvalidRequest(
            "hyperparameters are given beside method: move them into the method.", param="hyperparameters"
        )
    if method.type == "reinforcement" and method.reinforcement is None:
        raise InvalidRequest(
            "method.reinforcement.grader is missing: reinforcement needs a grader.",
            param="method.reinforcement.grader",
        )
    for name in ("supervised", "dpo", "reinforcement"):
        if name != method.type and getattr(method, name) is not None:
            raise InvalidRequest(
                f"method.{name} is given, but method.type is {method.type}: leave it out.",
                param=f"method.{name}",
            )
    defaults = {"supervised": Supervised, "dpo": DpoMethod}
    if method.type in defaults and getattr(method, method.type) is None:
        return Method.model_validate({"type": method.type, method.type: defaults[method.type]()})
    return method


def rate_of(kind: JobKind) -> float:
    """Learning rate of a LoRA at the multiplier 1. The trainer's settings are imported with the first job."""
    if kind == "rl":
        from rondo.rl.config import RlConfig

        return RlConfig().lr
    from rondo.train.config import PreferenceConfig, TrainConfig

    return 10 * PreferenceConfig().lr if kind == "preference" else TrainConfig().lr


def settings_of(wanted: NewFineTuningJob, method: Method, records: int) -> dict[str, Any]:
    """Settings by dotted name. `records` is the number of training examples, from which the steps of reinforcement
    follow."""
    kind = KINDS[method.type]
    hyper: Hyperparameters = getattr(method, method.type).hyperparameters
    settings: dict[str, Any] = {"model": wanted.model, "adapter.kind": "lora"}
    settings["seed"] = DEFAULT_SEED if wanted.seed is None else wanted.seed
    if hyper.learning_rate_multiplier != "auto":
        settings["lr"] = rate_of(kind) * hyper.learning_rate_multiplier
    for integration in wanted.integrations or ():
        told = integration.wandb
        settings["metrics.wandb"] = told.project
        settings |= {
            f"metrics.wandb_{name}": value
            for name in ("name", "entity", "tags")
            if (value := getattr(told, name)) is not None
        }
    if method.type == "reinforcement":
        assert method.reinforcement is not None
        return settings | _reinforcement(method.reinforcement, records)
    if hyper.batch_size != "auto":
        settings["examples_per_step"] = hyper.batch_size
    settings["epochs"] = 3 if hyper.n_epochs == "auto" else hyper.n_epochs
    if isinstance(hyper, DpoHyperparameters) and hyper.beta != "auto":
        settings["preference.beta"] = hyper.beta
    return settings


def _reinforcement(told: Reinforcement, records: int) -> dict[str, Any]:
    from rondo.rl.config import RlConfig

    hyper, default = told.hyperparameters, RlConfig()
    if told.response_format is not None:
        raise InvalidRequest(
            "method.reinforcement.response_format is not supported: describe the format in the prompts, and check it "
            "in the grader.",
            param="method.reinforcement.response_format",
        )
    prompts = min(default.prompts_per_step, records) if hyper.batch_size == "auto" else hyper.batch_size
    epochs = 1 if hyper.n_epochs == "auto" else hyper.n_epochs
    settings: dict[str, Any] = {
        "grader": told.grader,
        "prompts_per_step": prompts,
        "steps": max(-(-records * epochs // prompts), 1),
    }
    if hyper.compute_multiplier != "auto":
        settings["samples_per_prompt"] = max(round(default.samples_per_prompt * hyper.compute_multiplier), 2)
    if hyper.eval_interval != "auto":
        settings["evaluate.every"] = hyper.eval_interval
    if hyper.eval_samples != "auto":
        settings["evaluate.samples"] = hyper.eval_samples
    return settings


def result_name(wanted: NewFineTuningJob) -> str:
    """Name of the resulting model, as OpenAI forms it; `{id}` is the end of the job's id."""
    base = wanted.model.rpartition("/")[2]
    return f"ft:{base}:{ORGANIZATION}:{wanted.suffix or ''}:{{id}}"
