"""ScalarLM's training routes: submit, follow and control jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from rondo.base.errors import Conflict, InvalidRequest, NotFound, RondoError, Unavailable
from rondo.control.jobs.book import JobRow
from rondo.control.jobs.launchers.folder import remove_runs
from rondo.control.key import Key
from rondo.control.objects.blobs import NewBlob
from rondo.gateway.routes.files import GONE, objects_of, receive_blob
from rondo.gateway.routes.queued.leases import service_of as queue_of
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.routes.training.registry import service_of as registry_of
from rondo.gateway.training.scalarlm import shown
from rondo.gateway.training.scalarlm.archive import ArchiveCode, content_of
from rondo.gateway.training.scalarlm.fields import TrainArguments, TrainRequest, Unprocessable, train_request
from rondo.gateway.training.scalarlm.specs import data_spec, program_spec
from rondo.gateway.training.scalarlm.uploads import LARGEST_CHUNK, ArchiveUploads, UploadPlan, params_of
from rondo.gateway.training.service import Training
from rondo.gateway.training.settings import check_model
from rondo.gateway.training.shown import folder_of
from rondo.jobs.control import check_removable
from rondo.jobs.control import remove as remove_job
from rondo.jobs.spec import JobSpec
from rondo.web.errors import BodyTooLarge
from rondo.web.http import read_body

router = APIRouter(prefix="/v1/megatron", tags=["scalarlm"])
IGNORED = "X-Rondo-Ignored"
MOST_LISTED = 1000
END_SECONDS = 60.0
"""Longest time in which the process of a deleted job must have ended."""
Line = Annotated[int, Query(ge=0)]


class UploadBeginning(BaseModel):
    model_config = ConfigDict(extra="forbid")
    total_size: int = Field(gt=0)
    total_hash: str = Field(max_length=64)
    chunk_size: int = Field(gt=0)
    num_chunks: int = Field(gt=0)
    compressed: bool = True
    params: dict[str, Any] = {}


class UploadId(BaseModel):
    model_config = ConfigDict(extra="forbid")
    upload_id: str = Field(max_length=64)


class StartedUpload(BaseModel):
    upload_id: str
    received_chunks: list[int]


class ReceivedChunk(BaseModel):
    upload_id: str
    chunk_index: int
    received: bool = True
    bytes_written: int


@router.post("/train", response_class=JSONResponse)
async def train(request: Request, key: JobsKey) -> Response:
    """Submits a job: a form with the archive `file`, which has dataset.jsonlines, and the JSON object `params`. With
    ml/cray_megatron/main.py in the archive, that program is the job; it needs a key with the scope `code`. An equal
    job of the same key that has not failed is returned instead of a second one."""
    try:
        form, blob = await receive_blob(request, "file", await objects_of(request).files.left(key.id))
    except ClientDisconnect:
        return Response(status_code=GONE)
    try:
        wanted = await _checked(request, key, params_of(form.fields.get("params", "{}")))
        return await _submit(request, key, wanted, blob)
    finally:
        await asyncio.to_thread(blob.drop)


@router.post("/upload/init")
async def begin_upload(request: Request, body: UploadBeginning, key: JobsKey) -> StartedUpload:
    """Begins an upload in pieces, or continues an equal one that was interrupted."""
    await _checked(request, key, body.params)
    plan = UploadPlan(body.total_size, body.total_hash.lower(), body.chunk_size, body.num_chunks, body.params)
    limit = await objects_of(request).files.left(key.id)
    plan.check(limit)
    id, there = await asyncio.to_thread(_uploads(request).begin, key.id, plan, limit)
    return StartedUpload(upload_id=id, received_chunks=there)


@router.post("/upload/chunk")
async def upload_chunk(request: Request, key: JobsKey) -> ReceivedChunk:
    """Stores a piece. Headers: X-Upload-Id, X-Chunk-Index, X-Chunk-Hash (SHA-256). Repeating it has no effect."""
    id, index = request.headers.get("x-upload-id", ""), request.headers.get("x-chunk-index", "")
    if not index.isdigit() or len(index) > 9:
        raise Unprocessable("X-Chunk-Index is a number from 0 on.", param="X-Chunk-Index")
    uploads = _uploads(request)
    await asyncio.to_thread(uploads.plan, id, key.id)
    data = await _body(request)
    hash = request.headers.get("x-chunk-hash", "")
    await asyncio.to_thread(uploads.add, id, key.id, int(index), hash, data)
    return ReceivedChunk(upload_id=id, chunk_index=int(index), bytes_written=len(data))


@router.post("/upload/finalize", response_class=JSONResponse)
async def finish_upload(request: Request, body: UploadId, key: JobsKey) -> Response:
    """Joins the pieces, checks size and hash, and submits the job."""
    uploads = _uploads(request)
    plan, blob = await asyncio.to_thread(uploads.joined, body.upload_id, key.id)
    try:
        answer = await _submit(request, key, await _checked(request, key, dict(plan.params)), blob)
    finally:
        await asyncio.to_thread(blob.drop)
    await asyncio.to_thread(uploads.remove, body.upload_id)
    return answer


@router.get("/train/logs/{model}", response_class=StreamingResponse)
async def training_logs(
    request: Request, model: str, key: JobsKey, starting_line_number: Line = 0
) -> StreamingResponse:
    """Output of all attempts as JSON lines, from a line number on."""
    row = await job_of(request, model, key)
    lines: Iterator[bytes] = shown.log_lines(row, starting_line_number)
    return StreamingResponse(lines, media_type="text/event-stream")


@router.get("/train/{job}")
async def training_job(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Status, settings and loss history of a job, by its model's name, its hash, its id, or `latest`."""
    return await _shown(request, await job_of(request, job, key))


@router.get("/train/{job}/dataset")
async def dataset(
    request: Request,
    job: str,
    key: JobsKey,
    offset: Line = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    q: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Examples of the training data; `q` filters them by a text."""
    path = shown.data_file(await job_of(request, job, key))
    return await asyncio.to_thread(shown.examples, path, offset, limit, q)


@router.get("/train/{job}/dataset/download", response_class=FileResponse)
async def download_dataset(
    request: Request, job: str, key: JobsKey, limit: Annotated[int | None, Query(ge=1)] = None
) -> Response:
    """The training data as JSON lines."""
    row = await job_of(request, job, key)
    path = shown.data_file(row)
    name = f"{shown.name_of_model(row)}.jsonl".replace(":", "-")
    if limit is None:
        return FileResponse(path, media_type="application/x-ndjson", filename=name)

    def lines() -> Iterator[bytes]:
        with path.open("rb") as file:
            for _, line in zip(range(limit), file, strict=False):
                yield line

    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


@router.get("/train/{job}/checkpoints")
async def checkpoints(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Saved checkpoints, the newest first; each is a model under the name `model`."""
    row = await job_of(request, job, key)
    return {"checkpoints": await asyncio.to_thread(shown.checkpoints_of, row)}


@router.post("/cancel/{job}")
async def cancel(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Cancels a job at once; its process is ended."""
    row = await job_of(request, job, key)
    return await _shown(request, await training_of(request).book.cancel(row.id, owner_of(key)))


@router.post("/restart/{job}")
async def restart(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Runs a failed or cancelled job again, from its last checkpoint."""
    row = await job_of(request, job, key)
    if row.state not in ("failed", "cancelled"):
        raise Conflict(
            f"Job {row.id} is {row.state}: only a failed or cancelled job is restarted.", code="job_state"
        )
    return await _shown(request, await training_of(request).restart(row, key))


@router.post("/delete/{job}")
async def delete(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Cancels a job, waits until its process has ended, and deletes it with its folder and its models."""
    training, registry = training_of(request), registry_of(request)
    row = await job_of(request, job, key)
    if not row.final:
        row = await training.book.cancel(row.id, owner_of(key))
    try:
        async with asyncio.timeout(END_SECONDS):
            while row.launched:
                await asyncio.sleep(0.1)
                row = await training.book.get(row.id)
    except TimeoutError:
        raise Unavailable(f"The process of job {row.id} has not ended yet: delete the job later.") from None
    answer = await _shown(request, row)
    for model in await registry.book.all(job=row.hash) if row.hash else ():
        await registry.remove(model.id, owner_of(key))
    folder = folder_of(row)
    if folder is not None and folder.path.is_dir():
        await asyncio.to_thread(check_removable, folder)
    await training.book.delete(row.id, owner_of(key))
    await asyncio.to_thread(remove_runs, row.id)
    await training.forget_inputs(row.spec)
    if folder is not None and folder.path.is_dir() and not await training.book.has(str(row.hash)):
        await asyncio.to_thread(remove_job, folder)
    return answer


@router.get("/list_models")
async def list_models(
    request: Request, key: JobsKey, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED
) -> dict[str, Any]:
    """Jobs of the key, the newest first."""
    rows = await training_of(request).book.all(owner_of(key), limit=limit)
    deployed = {row.id for row in rows if _deployed(request, row)}
    return {
        "models": await asyncio.to_thread(lambda: [shown.listed(row, row.id in deployed) for row in rows])
    }


async def job_of(request: Request, name: str, key: Key) -> JobRow:
    book = training_of(request).book
    if name != "latest":
        row: JobRow = await book.get(name, owner_of(key))
        return row
    newest: list[JobRow] = await book.all(owner_of(key), limit=1)
    if not newest:
        raise NotFound("There is no job yet.", param="job", code="job_not_found")
    return newest[0]


async def _checked(request: Request, key: Key, params: object) -> TrainRequest:
    """The fields, with the base model; nothing is stored yet."""
    wanted = train_request(params)
    model = wanted.arguments.llm_name or queue_of(request).default_model()
    try:
        check_model(model, "llm_name")
    except RondoError as error:
        raise Unprocessable(error.message, param="llm_name") from error
    key.may_use(model)
    wanted.arguments.llm_name = model
    await _check_resources(training_of(request), wanted.arguments)
    return wanted


async def _check_resources(training: Training, told: TrainArguments) -> None:
    name = training.config.jobs.launcher
    if told.nodes > 1:
        try:
            training.named[name].check(JobSpec("sft", {}, resources={"nodes": told.nodes}))
        except InvalidRequest as error:
            raise Unprocessable(error.message.replace("resources.", ""), param="nodes") from error
    if not told.gpus:
        return
    gpus, there = told.gpus * told.nodes, sum(node.gpus for node in await training.nodes())
    if gpus > there and (there or gpus > 1):
        where = "gateway.jobs.gpus lists them" if name == "local" else "GET /v1/nodes lists its nodes"
        raise Unprocessable(
            f"gpus is {gpus} on all nodes, and jobs of the launcher {name} may use {there}: {where}.",
            param="gpus",
        )


async def _submit(request: Request, key: Key, wanted: TrainRequest, blob: NewBlob) -> Response:
    training = training_of(request)
    limit = 20 * objects_of(request).config.files.file_bytes
    content = await asyncio.to_thread(content_of, blob.path, limit, partial(key.may, "code"))
    gpus = await _gpus(training, wanted.arguments)
    if isinstance(content, ArchiveCode):
        spec = await asyncio.to_thread(program_spec, wanted, content, gpus, training.config.jobs)
    else:
        spec = data_spec(wanted, content, gpus)
    row = await training.submit(spec, key, result=f"sl-{training.digest_of(spec, key)[:24]}")
    headers = {IGNORED: ", ".join(wanted.ignored)} if wanted.ignored else {}
    return JSONResponse(await _shown(request, row), headers=headers)


async def _gpus(training: Training, told: TrainArguments) -> int:
    """GPUs on each node. As in ScalarLM, a job that requests one runs without it where there is none."""
    if told.gpus is None:
        return await training.fine_tuning_gpus()
    if told.gpus * told.nodes == 1:
        return min(1, sum(node.gpus for node in await training.nodes()))
    return told.gpus


async def _shown(request: Request, row: JobRow) -> dict[str, Any]:
    return await asyncio.to_thread(shown.response_of, row, _deployed(request, row))


def _deployed(request: Request, row: JobRow) -> bool:
    """Whether requests for the job's model are answered: it is loaded with the first one."""
    return row.state == "succeeded" and registry_of(request).answers(row.result or str(row.hash))


def _uploads(request: Request) -> ArchiveUploads:
    blobs = objects_of(request).blobs
    return ArchiveUploads(blobs.folder / "archives", blobs)


async def _body(request: Request) -> bytes:
    try:
        return await read_body(
            *(request, LARGEST_CHUNK, request.app.state.objects.config.body_seconds),
            section="gateway",
            setting="",
        )
    except BodyTooLarge as error:
        raise BodyTooLarge(f"A piece has at most {LARGEST_CHUNK:,} bytes.", param="body") from error
