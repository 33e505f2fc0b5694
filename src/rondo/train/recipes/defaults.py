"""Defaults chosen by the planner for the machine: number types, microbatch, activation checkpointing, LoRA and QLoRA.

A choice depends on the model, the settings and the memory that the device has, not on what is free now: the same
command on the same machine is the same job. Only settings without influence on the result follow free memory.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rondo.base.errors import ConfigError
from rondo.base.units import GIB
from rondo.models.files.headers import read_config
from rondo.plan.finetune import (
    METHODS,
    Fit,
    Method,
    Number,
    Tuning,
    TuningMemory,
    Wanted,
    fit,
    memory,
    seconds_per_step,
)
from rondo.plan.machine import Device, device_at_hand
from rondo.plan.sizes.hf import shape_of
from rondo.plan.sizes.model import ModelShape
from rondo.train.config import Kind, TrainConfig

SMALL = 64_000_000
"""Parameters below which the settings' own defaults stay: such models fit everywhere."""
ATTENTION_ONLY = r".*\.self_attn\.\w+"
"""Targets of a LoRA in a mixture of experts."""
FASTER_TYPES = "bf16 products are faster; weights and optimizer stay in float32"
LORA_RATE = 10
"""A LoRA's learning rate in preference training, relative to that of full weights."""


@dataclass(frozen=True)
class Choice:
    """One setting, by its name below `train`, and the reason for its value."""

    setting: str
    value: Any
    reason: str


@dataclass(frozen=True)
class PlannedConfig:
    """A config with the planner's choices. `memory` and `device` are None if the planner has no estimate."""

    config: TrainConfig
    choices: tuple[Choice, ...] = ()
    memory: TuningMemory | None = None
    device: Device | None = None
    step_seconds: float | None = None
    warning: str = ""


def planned(
    kind: Kind, config: TrainConfig, model: Path, ranks: int = 1, device: Device | None = None
) -> PlannedConfig:
    """Fills the settings that the user has not made. With several ranks, offload, Megatron-Core, a Tokenformer or a
    quantized base the config is returned as it is."""
    hf = read_config(model)
    device = device or device_at_hand(config.device)
    apart = ranks > 1 or config.learner != "native" or config.offload != "none"
    if apart or device is None or config.adapter.kind == "tokenformer" or hf.get("quantization_config"):
        return PlannedConfig(config)
    try:
        shape = shape_of(hf, model.name)
    except ConfigError:
        return PlannedConfig(config)  # sizes that the planner cannot read
    now = _tuning(kind, config, device)
    if shape.parameters < SMALL or not _open_settings(config):
        return _as_it_is(shape, config, device, now)
    try:
        found = fit(shape, device, _wanted(kind, config))
    except ConfigError:
        if "kind" not in config.adapter.model_fields_set:
            raise
        return _as_it_is(shape, config, device, now)
    memory_reason = f"{found.memory.total / GIB:.1f} of {found.room / GIB:.1f} GiB with it"
    if (now_fits := _within_free(shape, config, device, found)) is not found:
        memory_reason = f"only {(device.free or 0.0) / GIB:.1f} GiB are free at this start"
        found = now_fits
    config, choices = _filled(config, _choices(kind, shape, config, found, memory_reason))
    step = seconds_per_step(shape, found.tuning, device, config.tokens_per_step)
    return PlannedConfig(config, choices, found.memory, device, step, _warning(found.memory, device))


def _open_settings(config: TrainConfig) -> bool:
    """Whether any setting is left to the planner."""
    names = {"dtype", "precision", "checkpointing", "logits", "tokens_per_microbatch"}
    return bool(names - config.model_fields_set) or "kind" not in config.adapter.model_fields_set


def _as_it_is(shape: ModelShape, config: TrainConfig, device: Device, now: Tuning) -> PlannedConfig:
    need = memory(shape, now)
    step = seconds_per_step(shape, now, device, config.tokens_per_step)
    return PlannedConfig(config, (), need, device, step, _warning(need, device))


def _tuning(kind: Kind, config: TrainConfig, device: Device) -> Tuning:
    """The config as the planner's input."""
    compute = config.precision if config.precision in get_args(Number) else None
    method: Method = "full"
    if config.adapter.kind == "lora":
        method = "lora" if config.adapter.quantize_base == "none" else "qlora"
    return Tuning(
        method,
        config.dtype,
        compute or ("bfloat16" if config.precision else config.dtype),  # type: ignore[arg-type]
        config.adapter.r,
        config.optimizer,
        config.checkpointing,
        config.logits,
        config.tokens_per_microbatch,
        config.max_length,
        _has_reference(kind, config),
        device.kind,
    )


def _has_reference(kind: Kind, config: TrainConfig) -> bool:
    told = config.preference
    return kind == "preference" and told.loss != "simpo" and told.reference == "batch"


def _wanted(kind: Kind, config: TrainConfig) -> Wanted:
    given = config.model_fields_set

    def own(name: str) -> Any:
        return getattr(config, name) if name in given else None

    compute = own("precision")
    masters: Number | None = "float32" if compute in ("float32", "float16") else None
    return Wanted(
        _methods(kind, config),
        own("dtype") or masters,
        compute if compute in (None, *get_args(Number)) else "bfloat16",
        own("checkpointing"),
        own("logits"),
        own("tokens_per_microbatch"),
        config.adapter.r,
        config.optimizer,
        config.max_length,
        config.tokens_per_microbatch,
        _has_reference(kind, config),
    )


def _methods(kind: Kind, config: TrainConfig) -> tuple[Method, ...]:
    adapter = config.adapter
    given = adapter.model_fields_set
    if "kind" not in given:
        return ("full",) if kind == "pretrain" else ("full", "lora") if kind == "reward" else METHODS
    if adapter.kind == "none":
        return ("full",)
    if adapter.quantize_base != "none":
        return ("qlora",)
    return ("lora",) if "quantize_base" in given or kind == "reward" else ("lora", "qlora")


def _within_free(shape: ModelShape, config: TrainConfig, device: Device, found: Fit) -> Fit:
    """The choice with more recomputation, if less memory is free than the device has."""
    if device.free is None or found.memory.total <= device.free:
        return found
    given = config.model_fields_set
    for how in ["selective", "full"] if "checkpointing" not in given else [found.tuning.checkpointing]:
        logits = found.tuning.logits if "logits" in given else "chunked"
        tuning = replace(found.tuning, checkpointing=how, logits=logits)  # type: ignore[arg-type]
        need = memory(shape, tuning)
        if need.total <= device.free:
            return replace(found, tuning=tuning, memory=need)
    return found


def _warning(need: TuningMemory, device: Device) -> str:
    there = device.memory if device.free is None else device.free
    if need.total <= there:
        return ""
    return (
        f"the planner expects {need.total / GIB:.1f} GiB, and {there / GIB:.1f} GiB are free: the job may run out of "
        "memory"
    )


def _choices(
    kind: Kind, shape: ModelShape, config: TrainConfig, found: Fit, memory_reason: str
) -> dict[str, tuple[Any, str]]:
    """Values and reasons by setting; settings of the user are removed later."""
    tuning, full = found.tuning, found.tuning.method == "full"
    chosen: dict[str, tuple[Any, str]] = {}
    if not full:
        chosen["adapter.kind"] = ("lora", _instead(found, "full", "full fine-tuning"))
        if shape.experts is not None and config.adapter.targets == "all-linear":
            chosen["adapter.targets"] = (ATTENTION_ONLY, "in a mixture of experts a LoRA covers attention")
        if kind == "preference" and "lr" not in config.model_fields_set | config.preference.model_fields_set:
            rate = float(f"{LORA_RATE * config.preference.lr:.3g}")
            chosen["lr"] = (rate, f"a LoRA needs about {LORA_RATE} times the rate of full weights")
    if tuning.method == "qlora":
        chosen["adapter.quantize_base"] = ("nf4", _instead(found, "lora", "LoRA over 16-bit weights"))
    chosen["dtype"] = (tuning.dtype, "the base is frozen; the adapter stays in float32")
    if full and tuning.compute != tuning.dtype:
        chosen["precision"] = (tuning.compute, FASTER_TYPES)
    chosen["tokens_per_microbatch"] = (
        tuning.tokens,
        f"larger ones need more than {found.room / GIB:.1f} GiB",
    )
    chosen["checkpointing"] = (tuning.checkpointing, memory_reason)
    chosen["logits"] = (tuning.logits, memory_reason)
    return chosen


def _instead(found: Fit, method: Method, name: str) -> str:
    need = found.rejected.get(method)
    if need is None:
        return "set by the user"
    return f"{name} needs {need / GIB:.1f} GiB of {found.room / GIB:.1f}"


def _filled(
    config: TrainConfig, chosen: Mapping[str, tuple[Any, str]]
) -> tuple[TrainConfig, tuple[Choice, ...]]:
    """The config with the choices that differ from its values and that the user has not made."""
    top: dict[str, Any] = {}
    adapter: dict[str, Any] = {}
    choices = []
    for name, (value, reason) in chosen.items():
        section, _, leaf = name.rpartition(".")
        owner = config.adapter if section else config
        if leaf in owner.model_fields_set or getattr(owner, leaf) == value:
            continue
        (adapter if section else top)[leaf] = value
        choices.append(Choice(name, value, reason))
    if adapter:
        top["adapter"] = config.adapter.model_copy(update=adapter)
    return config.model_copy(update=top), tuple(choices)
