"""Publication of a job's model: to the Hugging Face Hub, a folder or an object store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from rondo.base.errors import NotFound
from rondo.gateway.auth import check_admin
from rondo.gateway.routes.security import JobsKey
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.routes.training.scalarlm.train import job_of
from rondo.gateway.training.scalarlm.fields import Unprocessable
from rondo.gateway.training.scalarlm.publish import ModelPublisher, Publication, log_file
from rondo.gateway.training.shown import folder_of
from rondo.jobs.job import Job

router = APIRouter(prefix="/v1/megatron/train/{job}/publish", tags=["scalarlm"])
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
STEP = re.compile(r"(?:step_|checkpoint_)?(\d{1,12})(?:\.pt)?")


class NewPublication(BaseModel):
    """Either `repo_id` with `hf_token`, or with an admin's key `destination`."""

    model_config = ConfigDict(extra="forbid")
    mode: Literal["merged", "adapter"] = "merged"
    repo_id: str | None = Field(default=None, max_length=200)
    private: bool = False
    hf_token: str | None = Field(default=None, max_length=500)
    destination: str | None = Field(default=None, max_length=2048)
    """A folder of the gateway's machine that does not exist, or a URL such as s3://BUCKET/FOLDER."""
    checkpoint: str | None = Field(default=None, max_length=100)
    """step_N; the final model by default."""
    lora_alpha: None = None
    """Part of each adapter here, so that it cannot be given."""
    commit_message: str | None = Field(default=None, max_length=1000)


@router.post("")
async def publish(request: Request, job: str, body: NewPublication, key: JobsKey) -> dict[str, Any]:
    """Begins to publish a model, merged with its base or as an adapter. One publication of a job runs at a time."""
    folder = await _job(request, job, key)
    step = None
    if body.checkpoint is not None:
        match = STEP.fullmatch(body.checkpoint)
        if match is None:
            raise Unprocessable(
                "checkpoint is the name of a checkpoint, such as step_100.", param="checkpoint"
            )
        step = int(match[1])
        if step not in await asyncio.to_thread(folder.saved_steps):
            raise NotFound(
                f"The job has no checkpoint of step {step}.", param="checkpoint", code="no_checkpoint"
            )
    if (body.repo_id is None) == (body.destination is None):
        raise Unprocessable("Give either repo_id or destination.", param="repo_id")
    if body.destination is not None:
        check_admin(key)
        if "://" not in body.destination:
            await asyncio.to_thread(_check_folder, Path(body.destination))
    elif not REPOSITORY.fullmatch(body.repo_id or ""):
        raise Unprocessable("repo_id is the name of a repository, such as owner/name.", param="repo_id")
    elif not body.hf_token:
        raise Unprocessable("hf_token is missing: give a token with write permission.", param="hf_token")
    wanted = Publication(
        body.mode,
        str(body.repo_id or body.destination),
        body.repo_id is not None,
        step,
        body.private,
        body.hf_token or "",
        body.commit_message or f"Upload {folder.label}",
    )
    return await _publisher(request).begin(folder, wanted)


@router.get("/status")
async def publish_status(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Phase of the newest publication: queued, merging, saving, uploading, done, error or cancelled."""
    folder = await _job(request, job, key)
    return await asyncio.to_thread(_publisher(request).status, folder)


@router.post("/cancel")
async def cancel_publish(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Cancels a running publication."""
    return await _publisher(request).cancel(await _job(request, job, key))


@router.get("/logs", response_class=StreamingResponse)
async def publish_logs(
    request: Request,
    job: str,
    key: JobsKey,
    starting_line_number: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """Output of the newest publication as JSON lines."""
    file = await asyncio.to_thread(log_file, await _job(request, job, key))

    def lines() -> Iterator[bytes]:
        if not file.exists():
            return
        with file.open(errors="replace") as opened:
            for number, line in enumerate(opened):
                if number >= starting_line_number:
                    yield json.dumps({"line": line.rstrip(), "line_number": number}).encode() + b"\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _check_folder(folder: Path) -> None:
    if not folder.is_absolute():
        raise Unprocessable("destination is an absolute path or a URL.", param="destination")
    if folder.exists():
        raise Unprocessable(f"{folder} exists already: choose another.", param="destination")


async def _job(request: Request, name: str, key: JobsKey) -> Job:
    row = await job_of(request, name, key)
    folder = folder_of(row)
    if folder is None or not folder.path.is_dir():
        raise NotFound(f"Job {row.id} has left no model so far.", param="job", code="no_model")
    return folder


def _publisher(request: Request) -> ModelPublisher:
    found: ModelPublisher = training_of(request).publisher
    return found
