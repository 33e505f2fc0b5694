"""ScalarLM's `train_args`: which settings of a job they are, and errors with status 422 that name the wrong field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rondo.base.errors import InvalidRequest

Positive = Annotated[int, Field(gt=0, le=10_000_000)]
SEED = 42


class Unprocessable(InvalidRequest):
    """A field with a wrong value."""

    status = 422


class LoraArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    r: Annotated[int, Field(gt=0, le=4096)] = 8
    lora_alpha: Annotated[float, Field(gt=0)] = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    target_modules: str | list[str] = "all-linear"


class TrainArguments(BaseModel):
    """Fields with ScalarLM's names and defaults."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    llm_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    max_steps: Positive = 100
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3e-3
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    batch_size: Positive = 1
    gradient_accumulation_steps: Positive = 4
    gradient_clip_value: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    gradient_checkpointing: bool = False
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    steps_per_checkpoint: Positive = 100
    max_checkpoints_to_keep: Positive = 3
    adapter_type: Literal["lora", "tokenformer", "none"] = "tokenformer"
    lora_config: LoraArguments = LoraArguments()
    gpus: Annotated[int, Field(ge=0, le=4096)] | None = None
    """GPUs on each node."""
    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    max_gpus: Annotated[int, Field(ge=0)] | None = None
    training_mode: Literal["language_model"] = "language_model"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attn_implementation: str = "auto"
    max_token_block_size: Positive = 16_777_216
    distribution_strategy: str = "fsdp"
    cuda_memory_log_interval: Positive = 100
    training_history_length: Positive = 1024
    """Most steps in the status of the job."""
    timeout: Positive | None = None
    """Seconds of training, after which the job ends with the model that it has."""
    trust_remote_code: Literal[False] = False


WITHOUT_EFFECT = (
    *("max_gpus", "attn_implementation", "max_token_block_size", "distribution_strategy"),
    *("cuda_memory_log_interval", "lora_config.lora_dropout"),
)
"""Accepted fields: Rondo chooses these itself."""


@dataclass(frozen=True)
class TrainRequest:
    arguments: TrainArguments
    given: Mapping[str, Any]

    @property
    def ignored(self) -> list[str]:
        """Given fields without effect."""
        told = {*self.given, *(f"lora_config.{name}" for name in self.given.get("lora_config") or ())}
        return [name for name in WITHOUT_EFFECT if name in told]

    def settings(self, model: str, records: int) -> dict[str, Any]:
        """Settings by dotted name. ScalarLM counts steps and examples; the epochs follow from both."""
        told = self.arguments
        examples = told.batch_size * told.gradient_accumulation_steps
        settings: dict[str, Any] = {
            "model": model,
            "epochs": told.max_steps * examples / records,
            "examples_per_step": examples,
            "lr": told.learning_rate,
            "decay": "linear",
            "lr_end": 0.0,
            "warmup": min(told.warmup_steps, told.max_steps - 1),
            "weight_decay": 0.01,
            "clip": told.gradient_clip_value,
            "seed": SEED if told.seed is None else told.seed,
            "save_every": told.steps_per_checkpoint,
            "keep": told.max_checkpoints_to_keep,
            "evaluate.held_out": 0.0,
            "adapter.kind": told.adapter_type,
        }
        if told.adapter_type == "lora":
            settings |= {
                "adapter.r": told.lora_config.r,
                "adapter.alpha": told.lora_config.lora_alpha,
                "adapter.targets": told.lora_config.target_modules,
            }
        if told.adapter_type == "tokenformer":
            settings["adapter.r"] = 32
        if told.gradient_checkpointing:
            settings["checkpointing"] = "full"
        if told.timeout is not None:
            settings["until"] = f"elapsed>={told.timeout}"
        if told.dtype != "auto":
            settings["dtype"] = told.dtype
        return settings


def train_request(params: object) -> TrainRequest:
    """Raises an `Unprocessable` that names the wrong field."""
    if not isinstance(params, Mapping):
        raise Unprocessable("params is not a JSON object: send the train_args.", param="params")
    try:
        return TrainRequest(TrainArguments.model_validate(dict(params)), dict(params))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [
                *TrainArguments.model_fields,
                *(f"lora_config.{name}" for name in LoraArguments.model_fields),
            ]
            close = difflib.get_close_matches(field, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known fields: {', '.join(sorted(known))}."
            raise Unprocessable(f"{field} is no field of train_args: {hint}", param=field) from None
        raise Unprocessable(f"{field}: {first['msg']}.", param=field, code="invalid_value") from None
