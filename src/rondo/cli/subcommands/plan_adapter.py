"""`rondo plan --lora|--qlora`: whether an adapter of a model can be trained on one device."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from textwrap import wrap
from typing import Any

from rondo.base.errors import ConfigError
from rondo.base.units import GIB, human_count, human_seconds
from rondo.plan.finetune import (
    CHECKPOINTING,
    ROOM,
    Fit,
    Tuning,
    Wanted,
    fit,
    largest_microbatch,
    memory,
    seconds_per_step,
    trained_parameters,
)
from rondo.plan.machine import Device, device_at_hand
from rondo.plan.sizes.model import ModelShape

HERE = "here"
"""Name of the device of this machine, as value of --gpu."""
LENGTH, TOKENS_PER_STEP = 2048, 16384
"""Defaults of `rondo train`."""
PARTS = {
    "weights": "weights",
    "adapters": "adapters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "working": "one layer at work",
    "logits": "logits",
    "overhead": "allocator and libraries",
}


def device_of(given: argparse.Namespace) -> Device:
    if given.gpu != HERE:
        from rondo.cli.commands.plan import gpu_of_flags

        return Device.of_gpu(gpu_of_flags(given))
    found = device_at_hand("auto")
    if found is None:
        raise ConfigError("--gpu here: the memory of this machine is unknown. Name a GPU.", param="gpu")
    return found


def run(given: argparse.Namespace, shape: ModelShape, model: str) -> int:
    if (given.gpus or 1) > 1 or given.write or given.dry_run or given.serve:
        raise ConfigError(
            "--lora and --qlora plan one device: leave out --gpus, --serve, --write and --dry-run.",
            param="lora",
        )
    device = device_of(given)
    rank, method = given.lora or given.qlora, "lora" if given.lora else "qlora"
    wanted = Wanted(
        (method,),  # type: ignore[arg-type]
        checkpointing=given.checkpointing,
        rank=rank,
        length=given.seq or LENGTH,
    )
    step = given.tokens_per_step or TOKENS_PER_STEP
    try:
        found = fit(shape, device, wanted)
    except ConfigError as error:
        found, reason = _least(shape, device, wanted), error.message
    else:
        reason = ""
    command = _command(found, model)
    if given.json:
        print(json.dumps(_object(shape, device, found, step, command, fits=not reason)))
    else:
        print("\n".join(_lines(shape, device, found, step, command, reason)))
    return 1 if reason else 0


def _least(shape: ModelShape, device: Device, wanted: Wanted) -> Fit:
    """The smallest requirement of a model that does not fit."""
    method, length = wanted.methods[0], wanted.length
    tuning = Tuning(
        method,
        "bfloat16",
        "bfloat16",
        wanted.rank,
        checkpointing="full",
        logits="chunked",
        tokens=length,
        length=length,
        kind=device.kind,
    )
    return Fit(tuning, memory(shape, tuning), ROOM[device.kind] * device.memory, {})


def _microbatches(shape: ModelShape, found: Fit) -> dict[str, int]:
    """Largest microbatch in tokens by activation checkpointing, with chunked logits; also the longest sequence."""
    base = replace(found.tuning, logits="chunked")
    return {
        how: largest_microbatch(shape, replace(base, checkpointing=how), found.room) for how in CHECKPOINTING
    }


def _command(found: Fit, model: str) -> list[str]:
    tuning = found.tuning
    settings: dict[str, Any] = {"adapter.kind": "lora", "adapter.r": tuning.rank}
    if tuning.method == "qlora":
        settings["adapter.quantize_base"] = "nf4"
    settings |= {"dtype": tuning.dtype, "tokens_per_microbatch": tuning.tokens, "max_length": tuning.length}
    settings |= {"checkpointing": tuning.checkpointing, "logits": tuning.logits}
    words = [f"--train.{name}={value}" for name, value in settings.items()]
    return ["rondo", "train", "sft", "--model", model, "--data", "DATA", *words]


def _object(
    shape: ModelShape, device: Device, found: Fit, step: int, command: list[str], *, fits: bool
) -> dict[str, Any]:
    return {
        "fits": fits,
        "model": shape.name,
        "parameters": shape.parameters,
        "trained_parameters": trained_parameters(shape, found.tuning),
        "device": device.name,
        "device_bytes": device.memory,
        "room_bytes": found.room,
        "settings": dict(vars(found.tuning)),
        "memory_bytes": {**vars(found.memory), "total": found.memory.total},
        "largest_microbatch": _microbatches(shape, found),
        "step_seconds": seconds_per_step(shape, found.tuning, device, step),
        "tokens_per_step": step,
        "train": command,
    }


def _lines(
    shape: ModelShape, device: Device, found: Fit, step: int, command: list[str], reason: str
) -> list[str]:
    tuning, need = found.tuning, found.memory
    name = "QLoRA" if tuning.method == "qlora" else "LoRA"
    trained = trained_parameters(shape, tuning)
    largest = [f"{how} {tokens:,}" for how, tokens in _microbatches(shape, found).items()]
    seconds = seconds_per_step(shape, tuning, device, step)
    rows = [
        (
            "trained",
            f"{human_count(trained)} of {human_count(shape.parameters)} parameters, {trained / shape.parameters:.2%}",
        ),
        ("settings", f"dtype {tuning.dtype}, checkpointing {tuning.checkpointing}, logits {tuning.logits}"),
        ("microbatch", f"{tuning.tokens:,} tokens, sequences of at most {tuning.length:,}"),
        ("largest", f"{', '.join(largest)} tokens, by checkpointing"),
    ]
    if seconds is not None and not reason:
        rows.append(("step", f"{human_seconds(seconds)} for {step:,} tokens"))
    verdict = "does not fit" if reason else "fits"
    return [
        f"{shape.name}, {name} of rank {tuning.rank} on {device.name}: {verdict}",
        "",
        *(f"{title:<12}{text}" for title, text in rows),
        "",
        "memory, GiB",
        *(f"  {title:<24}{getattr(need, part) / GIB:>8.2f}" for part, title in PARTS.items()),
        f"  {'total':<24}{need.total / GIB:>8.2f} of {found.room / GIB:.2f}, of a device's {device.memory / GIB:.1f}",
        "",
        *(wrap(reason, 80) if reason else ["train it with:", *_wrapped(command)]),
    ]


def _wrapped(command: list[str]) -> list[str]:
    """A command over several lines of at most 80 columns."""
    lines, line = [], " "
    for word in map(shlex.quote, command):
        if len(line) + len(word) > 76:
            lines.append(f"{line} \\")
            line = "   "
        line += f" {word}"
    return [*lines, line]
