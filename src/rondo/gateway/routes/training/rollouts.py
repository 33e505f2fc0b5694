"""Rollouts and alarms of an RL job: sampled answers with their rewards, and single rollouts with their tokens."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from rondo.base.errors import NotFound, RondoError
from rondo.control.jobs.book import JobRow
from rondo.control.objects.pages import Order
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import Limit, training_of
from rondo.gateway.training.inputs import local_model
from rondo.gateway.training.shown import folder_of
from rondo.rl.record import rollout_json
from rondo.rl.record.events import EventLog
from rondo.rl.record.query import Condition
from rondo.rl.record.reader import RolloutReader
from rondo.rl.record.store import FOLDER
from rondo.text.tokenizer import Tokenizer

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
Name = Annotated[str, Query(max_length=100)]
Id = Annotated[str | None, Query(max_length=100)]
Conditions = Annotated[list[Annotated[str, Query(max_length=200)]] | None, Query(max_length=8)]


@router.get("/{id}/rollouts")
async def list_rollouts(
    request: Request,
    id: str,
    key: JobsKey,
    where: Conditions = None,
    step: Annotated[int | None, Query(ge=0)] = None,
    sort: Name = "step",
    order: Order = "desc",
    limit: Limit = 20,
    after: Id = None,
) -> dict[str, Any]:
    """Stored rollouts that meet every condition, such as `reward>0.5` or `text~sorry`, those of the last step first.
    `steps` lists the steps whose rollouts are stored."""
    row = await _rl_job(request, id, key)

    def read() -> dict[str, Any]:
        stored = _reader(row)
        conditions = [Condition.of(text) for text in where or []]
        if step is not None:
            conditions.append(Condition("step", "=", str(step)))
        page = stored.find(conditions, sort=sort, order=order, limit=limit, after=after)
        return rollout_json.page(page, stored.texts(page.entries)) | {"steps": stored.steps()[::-1]}

    return await asyncio.to_thread(read)


@router.get("/{id}/rollouts/{rollout}")
async def retrieve_rollout(request: Request, id: str, rollout: str, key: JobsKey) -> dict[str, Any]:
    """One rollout with its tokens: text, log-probability, advantage and weight version of each. `tokens` is None if
    the tokenizer of the base model is not on this machine."""
    row = await _rl_job(request, id, key)

    def read() -> dict[str, Any]:
        whole = rollout_json.whole(_reader(row).show(rollout))
        for piece in whole["pieces"]:
            piece["tokens"] = _texts(row.model, piece["token_ids"])
        return whole

    return await asyncio.to_thread(read)


@router.get("/{id}/alarms")
async def list_alarms(request: Request, id: str, key: JobsKey) -> dict[str, Any]:
    """Alarms of an RL job, the newest first: the metrics that changed, since which step, and what to do."""
    row = await _rl_job(request, id, key)

    def read() -> list[dict[str, Any]]:
        job = folder_of(row)
        if job is None:
            return []
        events = EventLog(job.path)
        standing = {each["alarm"]: each["step"] for each in events.standing()}
        found = [each for each in events.all() if each["kind"] == "alarm"]
        return [each | {"over": standing.get(each["alarm"]) != each["step"]} for each in found[::-1]]

    return {"object": "list", "data": await asyncio.to_thread(read)}


async def _rl_job(request: Request, id: str, key: JobsKey) -> JobRow:
    row = await training_of(request).book.get(id, owner_of(key))
    if row.kind != "rl":
        raise NotFound(
            f"Job {row.id} is of the kind {row.kind}: jobs of the kind rl have rollouts.", param="id"
        )
    return row


def _reader(row: JobRow) -> RolloutReader:
    job = folder_of(row)
    return RolloutReader(Path("/nonexistent") if job is None else job.path / FOLDER)


def _texts(model: str, ids: list[int]) -> list[str] | None:
    with suppress(RondoError, OSError, LookupError):
        if (folder := local_model(model)) is None:
            return None
        tokenizer = _tokenizer(folder, folder.stat().st_mtime_ns)
        return [tokenizer.token_bytes(each).decode("utf-8", "replace") for each in ids]
    return None


@lru_cache(8)
def _tokenizer(folder: Path, changed: int) -> Tokenizer:
    """`changed` is the time of the folder, so that a replaced model is read again."""
    return Tokenizer.load(folder)
