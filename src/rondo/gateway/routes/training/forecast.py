"""Forecast of a job before it is submitted: memory, tokens, steps, minutes and device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from rondo.base.errors import ConfigError, InvalidRequest, RondoError, StorageError
from rondo.base.settings.config import load
from rondo.control.jobs.book import JobRow
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.routes.training.jobs import NewJob
from rondo.gateway.training.inputs import local_model
from rondo.gateway.training.settings import check, check_model, own_settings, tree_of
from rondo.gateway.training.shown import folder_of
from rondo.jobs.spec import JobSpec
from rondo.models.files.headers import read_config
from rondo.plan.cost.cluster import gpu_of
from rondo.plan.finetune import Tuning, TuningMemory, memory, trained_parameters
from rondo.plan.machine import Device, device_at_hand
from rondo.plan.sizes.hf import shape_of
from rondo.plan.sizes.model import ModelShape
from rondo.text.tokenizer import Tokenizer

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
SAMPLED = 256
"""Records whose tokens are counted; those of the rest follow from the size of the file."""
SAMPLED_BYTES = 4 << 20
EARLIER = 20
"""Finished jobs of the kind among which one with the same model is searched."""
STEPS_PER_EPOCH, EXAMPLES_PER_STEP = 32, 8
"""Defaults of `rondo train`: a small data set has smaller steps."""


class PlannedSetting(BaseModel):
    setting: str
    value: Any
    reason: str


class Forecast(BaseModel):
    """What the planner expects of a job. A field is None where nothing is known, and `notes` has the reason."""

    device: str | None = None
    device_bytes: int | None = None
    """Memory of the device."""
    memory_bytes: int | None = None
    """Peak memory of the job on the device."""
    memory_parts: dict[str, int] = {}
    fits: bool | None = None
    parameters: int | None = None
    trained_parameters: int | None = None
    records: int | None = None
    tokens: int | None = None
    """Training tokens of the whole job; rl: the most tokens that it samples."""
    steps: int | None = None
    seconds: float | None = None
    """Duration of all steps."""
    seconds_from: Literal["planner", "earlier job"] | None = None
    earlier: str | None = None
    """The job from whose speed the duration follows."""
    choices: list[PlannedSetting] = []
    """Settings that the planner chooses, with reasons."""
    notes: list[str] = []


@dataclass(frozen=True)
class Data:
    records: int
    tokens: int | None


@router.post("/forecast")
async def forecast_job(request: Request, body: NewJob, key: JobsKey) -> Forecast:
    """Expected memory, tokens and duration of a job, which is not submitted. Data may be missing."""
    if body.kind in ("script", "evaluate"):
        raise InvalidRequest(f"kind: there is no forecast of a job of the kind {body.kind}.", param="kind")
    check_model(body.model)
    key.may_use(body.model)
    training = training_of(request)
    data = None
    if body.data is not None and body.data.startswith("file-"):
        data = await training.file(body.data, key, "data")
    settings = own_settings(body.settings, "rl" if body.kind == "rl" else "train")
    spec = JobSpec(body.kind, {"model": body.model, **settings})
    rows = await training.book.all(owner_of(key), None, EARLIER, kind=body.kind, states=("succeeded",))
    gpu = training.config.jobs.gpu_type if body.resources.gpus else None
    try:
        return await asyncio.to_thread(_forecast, spec, data, body.resources, gpu, rows)
    except OverflowError:
        raise InvalidRequest("settings: a number is too large for a forecast.", param="settings") from None


def _forecast(
    spec: JobSpec, data: Path | None, resources: Any, gpu: str | None, rows: list[JobRow]
) -> Forecast:
    check(spec)
    flags = [each for each in spec.arguments() if each.startswith(f"--{spec.section}.")]
    config = getattr(load(tree_of(spec.section), env={}, flags=flags).tree, spec.section)
    found = Forecast()
    device = Device.of_gpu(gpu_of(gpu)) if gpu else device_at_hand("auto" if resources.gpus else "cpu")
    if resources.gpus and device is not None and device.kind == "cpu":
        device = None  # the GPUs are of other machines
        found.notes.append("The type of GPU is not known here: set gateway.jobs.gpu_type.")
    if device is not None:
        found.device, found.device_bytes = device.name, int(device.memory)
    folder = None
    with suppress(RondoError):
        folder = local_model(spec.model)
    if folder is None:
        found.notes.append(
            f"{spec.model} is not on this machine: its size is not known before the job has downloaded it."
        )
    else:
        _add_memory(found, spec, config, folder, device, resources.ranks or max(resources.gpus, 1))
    _add_steps(found, spec, config, _count(data, folder))
    _add_seconds(found, spec, rows)
    return found


def _add_memory(
    found: Forecast, spec: JobSpec, config: Any, folder: Path, device: Device | None, ranks: int
) -> None:
    try:
        shape = shape_of(read_config(folder), spec.model)
    except RondoError as error:
        found.notes.append(error.message)
        return
    found.parameters = shape.parameters
    kind = config.adapter.kind
    if kind != "tokenformer":
        method: Any = "lora" if kind == "lora" else "full"
        found.trained_parameters = trained_parameters(shape, Tuning(method, rank=config.adapter.r))
    if ranks > 1 or kind == "tokenformer" or device is None:
        found.notes.append(
            "Memory is not known for several processes or a Tokenformer: `rondo plan` computes layouts."
        )
        return
    try:
        need = _memory(found, spec, config, folder, shape, device)
    except ConfigError as error:
        found.fits = False
        found.notes.append(error.message)
        return
    if need is not None:
        found.memory_bytes = int(need.total)
        found.memory_parts = {name: int(value) for name, value in asdict(need).items() if value}
        found.fits = need.total <= device.memory


def _memory(
    found: Forecast, spec: JobSpec, config: Any, folder: Path, shape: ModelShape, device: Device
) -> TuningMemory | None:
    """The planner's choices are added to the forecast, with the duration of one step where it is known."""
    from rondo.train.recipes.defaults import planned

    if spec.kind == "rl":
        found.notes.append(
            "Memory of the learner; the KV cache of the engine that samples comes in addition."
        )
        return memory(shape, _rl_tuning(config, device))
    kind: Any = spec.kind
    plan = planned(kind, config, folder, 1, device)
    found.choices = [PlannedSetting(**asdict(each)) for each in plan.choices]
    if plan.warning:
        found.notes.append(f"{plan.warning[0].upper()}{plan.warning[1:]}.")
    found.seconds = plan.step_seconds
    return plan.memory


def _rl_tuning(config: Any, device: Device) -> Tuning:
    method: Any = (
        "full"
        if config.adapter.kind == "none"
        else "qlora"
        if config.adapter.quantize_base != "none"
        else "lora"
    )
    compute: Any = "bfloat16" if config.precision == "bfloat16" else "float32"
    return Tuning(
        method,
        "float32",
        compute,
        config.adapter.r,
        config.optimizer,
        config.checkpointing,
        config.logits,
        config.tokens_per_microbatch,
        kind=device.kind,
    )


def _add_steps(found: Forecast, spec: JobSpec, config: Any, data: Data | None) -> None:
    found.records = None if data is None else data.records
    if spec.kind == "rl":
        found.steps = config.steps
        if config.max_tokens is not None:
            found.tokens = (
                config.steps * config.prompts_per_step * config.samples_per_prompt * config.max_tokens
            )
    elif (epochs := config.epochs_of(spec.kind)) is None:
        found.steps, found.tokens = config.steps, config.steps * config.tokens_per_step
    elif data is not None and data.tokens is not None:
        total, records = max(data.tokens, 1), max(data.records, 1)
        step = config.tokens_per_step
        if config.examples_per_step is not None:
            step = config.examples_per_step * total / records
        elif "tokens_per_step" not in config.model_fields_set:
            step = min(step, max(total / STEPS_PER_EPOCH, EXAMPLES_PER_STEP * total / records))
        found.tokens, found.steps = int(epochs * total), max(1, round(epochs * total / min(step, total)))
    else:
        found.notes.append("The number of tokens is known as soon as the data are chosen.")
    if found.seconds is not None and found.steps is not None:
        found.seconds, found.seconds_from = found.seconds * found.steps, "planner"
    else:
        found.seconds = None


def _add_seconds(found: Forecast, spec: JobSpec, rows: list[JobRow]) -> None:
    """From the speed of the latest job of the same kind and model, which is measured on the device itself."""
    for row in rows:
        job = folder_of(row)
        if job is None or row.model != spec.model:
            continue
        metrics: list[dict[str, Any]] = []
        with suppress(StorageError):  # a damaged file of one job
            metrics = job.metrics()
        seconds = sum(float(each.get("seconds") or 0) for each in metrics)
        tokens = sum(float(each.get("tokens") or 0) for each in metrics)
        if not seconds or found.steps is None:
            continue
        if tokens and found.tokens is not None and spec.kind != "rl":
            found.seconds = seconds / tokens * found.tokens
        else:
            found.seconds = seconds / len(metrics) * found.steps
        found.seconds_from, found.earlier = "earlier job", row.spec.settings.get("name") or row.id
        return
    if found.seconds is None:
        found.notes.append(
            "The duration is known after the first steps: no earlier job of this model ran here."
        )


def _count(data: Path | None, folder: Path | None) -> Data | None:
    """Records and tokens of a file of JSON Lines, from a sample of its records."""
    if data is None:
        return None
    lines: list[bytes] = []
    sampled = 0
    with data.open("rb") as file:
        while len(lines) < SAMPLED and sampled < SAMPLED_BYTES and (line := file.readline(SAMPLED_BYTES)):
            if line.strip():
                lines.append(line)
                sampled += len(line)
        whole = not file.read(1)
    share = 1.0 if whole or not sampled else data.stat().st_size / sampled
    tokens = None
    if folder is not None and lines:
        with suppress(RondoError, ValueError, RecursionError):
            tokenizer = Tokenizer.load(folder)
            texts = [text for line in lines for text in _texts(json.loads(line))]
            tokens = int(share * sum(map(len, tokenizer.encode_batch(texts, add_special=False))))
    return Data(round(share * len(lines)), tokens)


def _texts(value: Any) -> Iterator[str]:
    """Texts of a record: its messages, prompts and answers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        for each in inner:
            yield from _texts(each)
