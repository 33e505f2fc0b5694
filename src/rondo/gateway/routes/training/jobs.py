"""Training jobs of every kind, with the settings of `rondo train` and `rondo rl`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import PlainTextResponse, Response

from rondo.base.errors import InvalidRequest, NotFound, StorageError
from rondo.control.config import LauncherName
from rondo.control.jobs.book import JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder, remove_runs
from rondo.control.jobs.states import JobState
from rondo.control.key import Key
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import After, Limit, ObjectList, object_list, training_of
from rondo.gateway.training.graders import check_grader
from rondo.gateway.training.inputs import check_task
from rondo.gateway.training.service import Training
from rondo.gateway.training.settings import GAMES, MODELS, check_model, own_settings
from rondo.gateway.training.shown import folder_of, seconds
from rondo.jobs.folders import check_name
from rondo.jobs.script import check_path
from rondo.jobs.spec import JobKind, JobSpec

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
LARGEST_PIECE = 1 << 20
Word = Annotated[str, Field(max_length=100_000, pattern="^[^\0]*$")]
SHORT = ("nodes", "gpus", "time_limit")


class Resources(BaseModel):
    model_config = ConfigDict(extra="forbid")
    nodes: int = Field(1, ge=1, le=4096)
    ranks: int | None = Field(None, ge=1, le=65536)
    """Processes of all nodes together; by default one for each GPU, or one on each node."""
    gpus: int = Field(0, ge=0, le=65536)
    """GPUs of all nodes together."""
    cpus: int = Field(1, ge=1, le=1024)
    """CPU cores of a process."""
    memory: int | None = Field(None, ge=1)
    """MiB on each node."""
    time_limit: int | None = Field(None, ge=1)
    """Seconds of an attempt. Then the job saves, and continues in another attempt."""


class NewJob(BaseModel):
    """A job with the settings of `rondo train KIND` or `rondo rl`, such as `{"lr": 1e-4, "adapter": {"kind": "lora"}}`
    or `{"adapter.kind": "lora"}`. Data are ids of uploaded files, or ORG/NAME of the hub."""

    model_config = ConfigDict(extra="forbid")
    kind: JobKind
    model: str = Field(default="", max_length=256)
    """Of each kind but script."""
    data: str | None = Field(default=None, max_length=256)
    validation_data: str | None = Field(default=None, max_length=256)
    task: str | None = Field(default=None, max_length=256)
    """rl: reverse, add, sort, guess or calculator, or the id of an uploaded file; evaluate: id of a file of tasks."""
    command: list[Word] | None = Field(default=None, min_length=1, max_length=1000)
    """script: program and arguments, such as `["python", "my.py"]`. It needs a key with the scope `code`."""
    files: dict[str, str] | None = Field(default=None, max_length=1000)
    """script: ids of uploaded files by the names that they have in the program's working folder."""
    settings: dict[str, Any] = {}
    name: str | None = Field(default=None, min_length=1, max_length=64)
    launcher: LauncherName | None = None
    """local, slurm, kubernetes or ray; by default the gateway's `jobs.launcher`."""
    nodes: int | None = None
    gpus: int | None = None
    time_limit: int | None = None
    """Short for the fields of `resources`."""
    resources: Resources = Resources()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        """Moves short fields into `resources`, which checks them."""
        if not isinstance(given, dict) or not isinstance(given.get("resources", {}), dict):
            return given
        short = {name: given[name] for name in SHORT if given.get(name) is not None}
        rest = {name: value for name, value in given.items() if name not in SHORT}
        return {**rest, "resources": {**given.get("resources", {}), **short}}


class ShownJob(BaseModel):
    """Times are seconds since the epoch."""

    id: str
    object: str = "job"
    kind: str
    model: str
    state: str
    attempt: int
    owner: str
    hash: str | None
    name: str | None
    step: int | None
    steps: int | None
    settings: dict[str, Any]
    resources: dict[str, int]
    launcher: str
    error: dict[str, Any] | None
    result: dict[str, float] | None
    """evaluate: scores by name."""
    created: int
    started: int | None
    ended: int | None


@router.post("", status_code=201)
async def submit_job(request: Request, body: NewJob, key: JobsKey) -> ShownJob:
    """Submits a job. An equal job of the same key that has not failed is returned instead of a second one."""
    training = training_of(request)
    if body.kind == "script":
        return await asyncio.to_thread(
            show, await training.submit(await _script(training, body, key), key, launcher=body.launcher)
        )
    if body.command is not None or body.files is not None:
        field = "files" if body.command is None else "command"
        raise InvalidRequest(f"{field}: only a job of the kind script has it.", param=field)
    check_model(body.model)
    key.may_use(body.model)
    section = "rl" if body.kind == "rl" else "train"
    settings: dict[str, Any] = {"model": body.model, **own_settings(body.settings, section)}
    for setting in MODELS & settings.keys():
        key.may_use(str(settings[setting]))
    inputs: dict[str, str] = {}
    if body.name:
        check_name(body.name)
        settings["name"] = body.name
    evaluated = body.kind == "evaluate"
    given = (
        ("data", "evaluate.data" if evaluated else "data", body.data),
        ("validation_data", "evaluate.data", body.validation_data),
        ("task", "evaluate.tasks" if evaluated else "task", body.task),
    )
    for field, setting, value in given:
        if value is None:
            continue
        if (field == "validation_data" and evaluated) or (setting == "task") != (body.kind == "rl"):
            raise InvalidRequest(f"{field}: a job of the kind {body.kind} has none.", param=field)
        if value.startswith("file-"):
            if setting == "task":
                await asyncio.to_thread(check_task, await training.file(value, key, field))
            settings[setting], inputs[setting] = await training.input(value, key, field)
        elif setting == "task" and value not in GAMES:
            raise InvalidRequest(
                f"task is one of {', '.join(sorted(GAMES))}, or the id of a file.", param="task"
            )
        else:
            check_model(value, field)
            settings[setting] = value
    if (grader := settings.get("grader")) is not None:
        settings["grader"] = training.completed(grader) if isinstance(grader, dict) else grader
        await asyncio.to_thread(check_grader, settings["grader"], "settings.grader")
    missing = "task" if body.kind == "rl" else "data"
    if not {missing, "evaluate.data" if evaluated else missing, "evaluate.tasks"} & settings.keys():
        raise InvalidRequest(f"{missing} is missing: give the id of an uploaded file.", param=missing)
    resources = body.resources.model_dump(exclude_defaults=True, exclude_none=True)
    spec = JobSpec(body.kind, settings, inputs, resources)
    row = await training_of(request).submit(spec, key, launcher=body.launcher)
    return await asyncio.to_thread(show, row)


async def _script(training: Training, body: NewJob, key: Key) -> JobSpec:
    """A program of the user's, with its files."""
    key.may("code")
    if body.command is None:
        raise InvalidRequest("command is missing: give the program and its arguments.", param="command")
    for field in ("model", "data", "validation_data", "task", "settings"):
        if getattr(body, field):
            raise InvalidRequest(f"{field}: a job of the kind script has none.", param=field)
    config = training.config.jobs
    settings: dict[str, Any] = {
        "command": body.command,
        "memory_bytes": config.code_memory_bytes,
        "file_bytes": config.code_file_bytes,
        "cpu_seconds": config.code_cpu_seconds,
        **({"name": body.name} if body.name else {}),
    }
    files, inputs = {}, {}
    for name, id in (body.files or {}).items():
        check_path(name, "files")
        files[name], inputs[f"files.{name}"] = await training.input(id, key, "files", purpose=None)
    return JobSpec(
        "script",
        {**settings, "files": files},
        inputs,
        body.resources.model_dump(exclude_defaults=True, exclude_none=True),
    )


@router.get("")
async def list_jobs(
    request: Request,
    key: JobsKey,
    after: After = None,
    limit: Limit = 20,
    kind: JobKind | None = None,
    state: Annotated[list[JobState] | None, Query(max_length=20)] = None,
) -> ObjectList:
    """Jobs of the key, those of OpenAI's API included, the newest first; with `kind` and `state`, only those."""
    rows = await training_of(request).book.all(
        owner_of(key), after, limit + 1, kind=kind, states=tuple(state or ())
    )
    data = await asyncio.to_thread(lambda: [show(row).model_dump() for row in rows[:limit]])
    return object_list(data, len(rows) > limit)


@router.get("/{id}")
async def retrieve_job(request: Request, id: str, key: JobsKey) -> ShownJob:
    """One job, by its id or its hash."""
    return await asyncio.to_thread(show, await training_of(request).book.get(id, owner_of(key)))


@router.post("/{id}/cancel")
async def cancel_job(request: Request, id: str, key: JobsKey) -> ShownJob:
    """Cancels a job at once; its process is ended."""
    return await asyncio.to_thread(show, await training_of(request).book.cancel(id, owner_of(key)))


@router.post("/{id}/pause")
async def pause_job(request: Request, id: str, key: JobsKey) -> ShownJob:
    """Saves a checkpoint and ends the process, until the job is resumed."""
    return await asyncio.to_thread(show, await training_of(request).book.pause(id, owner_of(key)))


@router.post("/{id}/resume")
async def resume_job(request: Request, id: str, key: JobsKey) -> ShownJob:
    """Continues a paused job from its last checkpoint."""
    return await asyncio.to_thread(show, await training_of(request).book.resume(id, owner_of(key)))


@router.delete("/{id}")
async def delete_job(request: Request, id: str, key: JobsKey) -> ShownJob:
    """Deletes a job that has ended. Its folder with the resulting model stays: see `rondo job rm`."""
    book = training_of(request).book
    row = await book.delete(id, owner_of(key))
    await asyncio.to_thread(remove_runs, row.id)
    await training_of(request).forget_inputs(row.spec)
    return await asyncio.to_thread(show, row)


@router.get("/{id}/metrics")
async def job_metrics(
    request: Request,
    id: str,
    key: JobsKey,
    after: Annotated[int, Query(ge=-1)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    name: Annotated[list[Annotated[str, Query(max_length=100)]] | None, Query(max_length=20)] = None,
) -> dict[str, Any]:
    """Metrics of the steps after `after`; with `name`, only those of these names."""
    row = await training_of(request).book.get(id, owner_of(key))
    job = folder_of(row)
    data = [] if job is None else await asyncio.to_thread(job.metrics, after, limit + 1)
    if name:
        data = [{each: of[each] for each in ("step", *name) if each in of} for of in data]
    return {"object": "list", "data": data[:limit], "has_more": len(data) > limit}


@router.get("/{id}/logs", response_class=PlainTextResponse)
async def job_logs(
    request: Request,
    id: str,
    key: JobsKey,
    offset: int = 0,
    length: Annotated[int, Query(ge=1, le=LARGEST_PIECE)] = 64 << 10,
    attempt: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Output of an attempt, the newest by default, from a byte offset on; a negative one counts from the end. The
    header `X-Log-Size` has the size."""
    row = await training_of(request).book.get(id, owner_of(key))
    file = AttemptFolder.of(row.id, attempt or row.attempt).output

    def read() -> tuple[bytes, int, int]:
        try:
            with file.open("rb") as opened:
                size = file.stat().st_size
                start = max(size + offset, 0) if offset < 0 else min(offset, size)
                opened.seek(start)
                return opened.read(length), start, size
        except FileNotFoundError:
            raise NotFound(
                f"Attempt {attempt or row.attempt} of job {row.id} has no output.", param="attempt"
            ) from None

    data, start, size = await asyncio.to_thread(read)
    headers = {"X-Log-Offset": str(start), "X-Log-Size": str(size)}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)


def show(row: JobRow) -> ShownJob:
    job = folder_of(row)
    status: dict[str, Any] = {}
    if job is not None:
        with suppress(StorageError):  # a damaged file of one job
            status = job.status()
    spec = row.spec
    hidden = {"data", "evaluate.data", "evaluate.tasks", "task", "model", "name", "files"}
    return ShownJob(
        id=row.id,
        kind=row.kind,
        model=row.model,
        state=row.state,
        attempt=row.attempt,
        owner=row.owner,
        hash=row.hash,
        name=spec.settings.get("name") or row.result,
        step=status.get("step"),
        steps=status.get("steps") or AttemptFolder.of(row.id, row.attempt).report().get("steps"),
        settings={name: value for name, value in spec.settings.items() if name not in hidden},
        resources=dict(spec.resources),
        launcher=row.launcher.partition("@")[0],
        error=row.error,
        result=AttemptFolder.of(row.id, row.attempt).report().get("result"),
        created=seconds(row.created) or 0,
        started=seconds(row.started),
        ended=seconds(row.ended),
    )
