"""OpenAI's fine-tuning jobs."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from rondo.base.errors import InvalidRequest
from rondo.control.jobs.book import JobRow
from rondo.control.key import Key
from rondo.gateway.routes.files import list_of
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.training import shown
from rondo.gateway.training.fine_tuning import (
    DEFAULT_SEED,
    KINDS,
    NewFineTuningJob,
    method_of,
    result_name,
    settings_of,
)
from rondo.gateway.training.graders import check_grader
from rondo.gateway.training.inputs import lines_in, task_of
from rondo.gateway.training.results import create_results
from rondo.gateway.training.service import Training
from rondo.gateway.training.settings import check_model
from rondo.jobs.spec import JobSpec

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine-tuning"])
PREFIX = "ftjob"
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=200)]


class ObjectList(BaseModel):
    object: str = "list"
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None


def training_of(request: Request) -> Training:
    found: Training = request.app.state.training
    return found


@router.post("")
async def create_fine_tuning_job(request: Request, body: NewFineTuningJob, key: JobsKey) -> dict[str, Any]:
    """Submits a job. An equal job of the same key that has not failed is returned instead of a second one."""
    check_model(body.model)
    if body.integrations:
        _check_wandb(training_of(request))
    key.may_use(body.model)
    training = training_of(request)
    method = method_of(body)
    if method.reinforcement is not None:
        method.reinforcement.grader = training.completed(method.reinforcement.grader)
        await asyncio.to_thread(check_grader, method.reinforcement.grader, "method.reinforcement.grader")
    settings, inputs = await _inputs(training, body, KINDS[method.type], key)
    training_lines = settings.pop("training_lines", None)
    settings |= settings_of(body, method, settings.pop("records", 0))
    origin = {
        "training_file": body.training_file,
        "validation_file": body.validation_file,
        "training_lines": training_lines,
        "method": method.model_dump(mode="json", exclude_none=True),
        "seed": DEFAULT_SEED if body.seed is None else body.seed,
        "metadata": body.metadata,
        "integrations": None
        if body.integrations is None
        else [each.model_dump(mode="json", exclude_none=True) for each in body.integrations],
    }
    gpus = await training.fine_tuning_gpus()
    resources = {"gpus": gpus} if gpus else {}
    spec = JobSpec(KINDS[method.type], settings, inputs, resources, origin)
    row = await training.submit(spec, key, PREFIX, result_name(body))
    return await asyncio.to_thread(shown.fine_tuning_job, row)


def _check_wandb(training: Training) -> None:
    """Raises if jobs of this machine cannot log to W&B. Nodes of a cluster have packages of their own."""
    if training.config.jobs.launcher == "local" and find_spec("wandb") is None:
        raise InvalidRequest(
            "integrations: the package wandb is not installed on the gateway's machine. Install it with "
            "`pip install 'rondo-lab[wandb]'`, or leave integrations out.",
            param="integrations",
            code="missing_extra",
        )


async def _inputs(
    training: Training, body: NewFineTuningJob, kind: str, key: Key
) -> tuple[dict[str, Any], dict[str, str]]:
    if kind == "rl":
        source = await training.file(body.training_file, key, "training_file")
        held_out = body.validation_file and await training.file(body.validation_file, key, "validation_file")
        path, digest, records = await asyncio.to_thread(task_of, source, held_out or None)
        told: dict[str, Any] = {"task": str(path), "records": records}
        if held_out:
            told["training_lines"] = await asyncio.to_thread(lines_in, source)
        return told, {"task": digest}
    pairs = kind == "preference"
    path_text, digest = await training.input(body.training_file, key, "training_file", pairs)
    settings: dict[str, Any] = {"data": path_text}
    inputs = {"data": digest}
    if body.validation_file:
        settings["evaluate.data"], inputs["evaluate.data"] = await training.input(
            body.validation_file, key, "validation_file", pairs
        )
    elif kind == "sft":
        settings["evaluate.held_out"] = 0
    return settings, inputs


@router.get("")
async def list_fine_tuning_jobs(
    request: Request, key: JobsKey, after: After = None, limit: Limit = 20
) -> ObjectList:
    """Jobs of the key, the newest first. `metadata[NAME]=VALUE` selects jobs with that metadata."""
    wanted = {
        name[len("metadata[") : -1]: value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    book, owner = training_of(request).book, owner_of(key)
    found: list[JobRow] = []
    while len(found) <= limit:
        rows = await book.all(owner, after, limit + 1, prefix=PREFIX)
        found += [row for row in rows if _has(row, wanted)]
        if len(rows) <= limit:
            break
        after = rows[-1].id
    for row in found[:limit]:
        await create_results(training_of(request).objects, row)
    data = await asyncio.to_thread(lambda: [shown.fine_tuning_job(row) for row in found[:limit]])
    return object_list(data, len(found) > limit)


def _has(row: JobRow, wanted: dict[str, str]) -> bool:
    metadata = row.spec.origin.get("metadata") or {}
    return all(metadata.get(name) == value for name, value in wanted.items())


@router.get("/{id}")
async def retrieve_fine_tuning_job(request: Request, id: str, key: JobsKey) -> dict[str, Any]:
    """One job. Its result files are created with the first look after its success."""
    row = await _job(request, id, key)
    await create_results(training_of(request).objects, row)
    return await asyncio.to_thread(shown.fine_tuning_job, row)


@router.post("/{id}/cancel")
async def cancel_fine_tuning_job(request: Request, id: str, key: JobsKey) -> dict[str, Any]:
    """Cancels a job at once; its process is ended."""
    row = await _job(request, id, key)
    changed = await training_of(request).book.cancel(row.id, owner_of(key))
    return await asyncio.to_thread(shown.fine_tuning_job, changed)


@router.post("/{id}/pause")
async def pause_fine_tuning_job(request: Request, id: str, key: JobsKey) -> dict[str, Any]:
    """Saves a checkpoint and ends the process, until the job is resumed."""
    row = await _job(request, id, key)
    changed = await training_of(request).book.pause(row.id, owner_of(key))
    return await asyncio.to_thread(shown.fine_tuning_job, changed)


@router.post("/{id}/resume")
async def resume_fine_tuning_job(request: Request, id: str, key: JobsKey) -> dict[str, Any]:
    """Continues a paused job from its last checkpoint."""
    row = await _job(request, id, key)
    changed = await training_of(request).book.resume(row.id, owner_of(key))
    return await asyncio.to_thread(shown.fine_tuning_job, changed)


@router.get("/{id}/events")
async def list_events(
    request: Request, id: str, key: JobsKey, after: After = None, limit: Limit = 20
) -> ObjectList:
    """State changes and the metrics of each step, the newest first."""
    row = await _job(request, id, key)
    events = await training_of(request).book.events(row.id, limit=1000)
    data = await asyncio.to_thread(shown.with_metrics, events, row)
    return page_of(data, after, limit)


@router.get("/{id}/checkpoints")
async def list_checkpoints(
    request: Request, id: str, key: JobsKey, after: After = None, limit: Limit = 10
) -> ObjectList:
    """Saved checkpoints, the newest first."""
    row = await _job(request, id, key)
    return page_of(await asyncio.to_thread(shown.checkpoints, row), after, limit)


async def _job(request: Request, id: str, key: Key) -> JobRow:
    row: JobRow = await training_of(request).book.get(id, owner_of(key), prefix=PREFIX)
    return row


def page_of(data: list[dict[str, Any]], after: str | None, limit: int) -> ObjectList:
    if after is not None:
        places = [place for place, each in enumerate(data) if each["id"] == after]
        if not places:
            raise InvalidRequest(f"There is no object {after!r} in this list.", param="after")
        data = data[places[0] + 1 :]
    return object_list(data[:limit], len(data) > limit)


def object_list(data: list[dict[str, Any]], more: bool) -> ObjectList:
    return ObjectList(**list_of(data, more))
