"""Settings of jobs with their descriptions, and the events and checkpoints of a job."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from rondo.base.settings.config_keys import SettingKey, keys_of, members
from rondo.control.jobs.book import JobRow
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.training.settings import choices_of, limits_of, settable, tree_of
from rondo.gateway.training.shown import folder_of, seconds
from rondo.jobs.spec import JobKind

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
EVENTS = 1000
TYPES: dict[type, Literal["integer", "number", "boolean", "text"]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
}


class ShownSetting(BaseModel):
    name: str
    type: Literal["integer", "number", "boolean", "text", "choice", "json"]
    description: str
    default: Any
    """None where the trainer derives the value."""
    choices: list[str]
    """Of a choice, or usual values of a text."""
    minimum: float | None
    maximum: float | None


class SettingList(BaseModel):
    object: str = "list"
    data: list[ShownSetting]


class JobEventShown(BaseModel):
    id: int
    time: int
    """Seconds since the epoch."""
    level: str
    message: str


class JobEventList(BaseModel):
    object: str = "list"
    data: list[JobEventShown]


class JobCheckpoint(BaseModel):
    step: int
    model: str
    """Name under which it answers requests."""
    metrics: dict[str, float]
    """Metrics of its step."""


class JobCheckpointList(BaseModel):
    object: str = "list"
    data: list[JobCheckpoint]


@router.get("/settings")
async def list_settings(kind: JobKind, key: JobsKey) -> SettingList:
    """Settings that a job of this kind accepts, with types, defaults and descriptions."""
    return await asyncio.to_thread(_settings, kind)


@router.get("/{id}/events")
async def job_events(request: Request, id: str, key: JobsKey) -> JobEventList:
    """Changes of the job's state with their reasons, the newest first."""
    book = training_of(request).book
    row = await book.get(id, owner_of(key))
    return JobEventList(
        data=[
            JobEventShown(id=each.id, time=seconds(each.time) or 0, level=each.level, message=each.message)
            for each in await book.events(row.id, limit=EVENTS)
        ]
    )


@router.get("/{id}/checkpoints")
async def job_checkpoints(request: Request, id: str, key: JobsKey) -> JobCheckpointList:
    """Saved checkpoints, the newest first."""
    row = await training_of(request).book.get(id, owner_of(key))
    return await asyncio.to_thread(_checkpoints, row)


def _checkpoints(row: JobRow) -> JobCheckpointList:
    job = folder_of(row)
    if job is None:
        return JobCheckpointList(data=[])
    metrics = {each["step"]: each for each in job.metrics()}
    found = []
    for step in job.saved_steps():
        known = metrics.get(step, {})
        numbers = {name: value for name, value in known.items() if isinstance(value, int | float)}
        numbers.pop("step", None)
        found.append(JobCheckpoint(step=step, model=f"{job.name}@{step}", metrics=numbers))
    return JobCheckpointList(data=found)


def _settings(kind: JobKind) -> SettingList:
    section = "rl" if kind == "rl" else "train"
    defaults = _defaults(kind)
    found = []
    for path, key in keys_of(tree_of(section)).items():
        name = path.partition(".")[2]
        if not name or key.sections or not settable(name, kind):
            continue
        found.append(_shown(name, key, defaults.get(name, key.default)))
    return SettingList(data=found)


def _defaults(kind: JobKind) -> dict[str, Any]:
    """Defaults that depend on the kind of job."""
    if kind not in ("sft", "preference", "reward"):
        return {}
    from rondo.train.config import TrainConfig

    config = TrainConfig().of_kind(kind)
    return {"lr": config.lr, "epochs": config.epochs_of(kind), "evaluate.held_out": config.held_out_of(kind)}


def _shown(name: str, key: SettingKey, default: Any) -> ShownSetting:
    choices = choices_of(key)
    types = [each for each in members(key.annotation) if each is not type(None)]
    kind: Any = "choice" if choices else TYPES.get(types[0] if len(types) == 1 else str, "json")
    low, high = limits_of(key)
    return ShownSetting(
        name=name,
        type=kind,
        description=key.description,
        default=default,
        choices=choices or [str(each) for each in key.examples],
        minimum=low,
        maximum=high,
    )
