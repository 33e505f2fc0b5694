"""The screen before a job starts: data, steps, time, memory, device and output, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rondo.base.units import GIB, human_count

if TYPE_CHECKING:
    from rondo.plan.machine import Device
    from rondo.rl.jobs import RlJobPlan
    from rondo.train.config import AdapterConfig
    from rondo.train.jobs import TrainJobPlan
    from rondo.train.recipes.defaults import Choice, PlannedConfig

Report = Callable[[int, Mapping[str, float]], None]
Row = tuple[str, str]

WIDTH, LABEL = 80, 10
MEASURED_STEPS = 3
"""Steps after the first one from which the remaining time is computed."""


def show_training(plan: TrainJobPlan) -> None:
    """Prints what a job is about to do. A finished job is not described."""
    from rondo.models.families import parse
    from rondo.models.files.headers import read_config
    from rondo.models.store import name_of
    from rondo.train.recipes.adapter import sizes

    config, planned = plan.config, plan.planned
    if plan.job.done:
        return
    trained, total = sizes(plan.kind, config.adapter, parse(read_config(plan.model)))
    rows = [
        ("model", f"{name_of(plan.model)}, {human_count(total)} parameters"),
        ("trained", _trained(config.adapter, trained, total)),
        ("data", _data(plan)),
        ("steps", f"{config.steps:,} of up to {config.tokens_per_step:,} tokens"),
        ("time", _time(planned, config.steps - plan.job.step)),
        *_memory(planned),
        ("device", f"{_device(config.device, planned)}, {_types(config.dtype, config.precision)}"),
        ("output", str(plan.job.path)),
        *_planner(planned.choices),
    ]
    _print(rows, planned.warning)


def show_rl(plan: RlJobPlan) -> None:
    from rondo.models.families import parse
    from rondo.models.files.headers import read_config
    from rondo.models.store import name_of
    from rondo.plan.machine import device_at_hand
    from rondo.train.recipes.adapter import sizes

    config = plan.config
    if plan.job.done:
        return
    trained, total = sizes("sft", config.adapter, parse(read_config(plan.model)))
    device = device_at_hand(config.device)
    name = config.device if device is None else f"{device.kind} ({device.name})"
    batch = config.prompts_per_step * config.samples_per_prompt
    rows = [
        ("model", f"{name_of(plan.model)}, {human_count(total)} parameters"),
        ("trained", _trained(config.adapter, trained, total)),
        ("task", f"{config.task}, {config.algorithm}"),
        ("steps", f"{config.steps:,} of {batch:,} samples, {config.samples_per_prompt} for each prompt"),
        ("time", "shown after the first steps"),
        *_free(device),
        ("device", f"{name}, {config.precision or 'type of the stored weights'}"),
        ("output", str(plan.job.path)),
    ]
    _print(rows, "")


def _free(device: Device | None) -> Iterator[Row]:
    if device is not None and device.free is not None:
        yield "memory", f"{device.free / GIB:.1f} of {device.memory / GIB:.1f} GiB free"


def _trained(adapter: AdapterConfig, trained: int, total: int) -> str:
    if adapter.kind == "none":
        return "all parameters"
    name = {"lora": "LoRA", "tokenformer": "Tokenformer"}[adapter.kind]
    over = " over 4-bit weights (nf4)" if adapter.quantize_base != "none" else ""
    return f"{human_count(trained)} parameters ({trained / total:.2%}): {name} of rank {adapter.r}{over}"


def _data(plan: TrainJobPlan) -> str:
    sources = plan.opened.training
    counts = [source.index.documents if source.index else len(source.records) for source in sources]
    parts = [f"{sum(counts):,} records"]
    if plan.tokenized is not None:
        tokens = sum(int(dataset.lengths.sum()) for dataset in plan.tokenized.datasets)
        parts.append(f"{tokens:,} tokens")
        passes = plan.epochs or plan.config.steps * plan.config.tokens_per_step / max(tokens, 1)
        parts.append(f"{passes:.3g} epochs")
    elif plan.epochs:
        parts.append(f"{plan.epochs:.3g} epochs")
    return ", ".join(parts)


def _time(planned: PlannedConfig, steps: int) -> str:
    if planned.step_seconds is None:
        return "shown after the first steps"
    return f"{_minutes(planned.step_seconds * steps)}, by the planner"


def _minutes(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    return f"about {minutes:.0f} minutes" if minutes < 120 else f"about {minutes / 60:.1f} hours"


def _memory(planned: PlannedConfig) -> Iterator[Row]:
    if planned.memory is None or planned.device is None:
        return
    device = planned.device
    free = "" if device.free is None else f", {device.free / GIB:.1f} free"
    need = planned.memory.total / GIB
    yield "memory", f"about {need:.1f} GiB of {device.memory / GIB:.1f}{free}, by the planner"


def _device(name: str, planned: PlannedConfig) -> str:
    return name if planned.device is None else f"{planned.device.kind} ({planned.device.name})"


def _types(dtype: str, precision: str | None) -> str:
    return dtype if precision in (None, dtype) else f"{precision} over {dtype} weights"


def _planner(choices: Sequence[Choice]) -> Iterator[Row]:
    for number, choice in enumerate(choices):
        yield "" if number else "planner", f"{choice.setting}={choice.value}: {choice.reason}"


def _print(rows: Sequence[Row], warning: str) -> None:
    lines = []
    for title, text in rows:
        first, *others = wrap(text, WIDTH - LABEL, break_on_hyphens=False, break_long_words=False) or [""]
        lines.append(f"{title:<{LABEL}}{first}")
        lines += [" " * LABEL + "  " + other for other in others]
    if warning:
        lines += wrap(f"warning: {warning}", WIDTH)
    print("\n".join(lines), file=sys.stderr)


def with_time_left(report: Report, steps: int) -> Report:
    """`report`, and after the first steps one line with the remaining time, unless a live view shows it."""
    if sys.stderr.isatty():
        return report
    ends: list[float] = []

    def timed(step: int, metrics: Mapping[str, float]) -> None:
        report(step, metrics)
        ends.append(time.monotonic())
        if len(ends) == 1 + MEASURED_STEPS and step < steps:
            each = (ends[-1] - ends[0]) / MEASURED_STEPS
            left = _minutes(each * (steps - step))
            print(f"time      {left} left, measured over {MEASURED_STEPS} steps", file=sys.stderr)

    return timed
