"""OpenAI's Evals API: evals, their runs and output items."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request

from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.objects.eval_runs import StoredRun
from rondo.control.objects.pages import Order, PageQuery
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import After, Limit, ObjectList, object_list, training_of
from rondo.gateway.training.evals.requests import (
    EvalChange,
    FileId,
    JsonlSource,
    NewEval,
    NewRun,
    check_criteria,
    check_source,
)
from rondo.gateway.training.evals.runner import EvalRunner
from rondo.gateway.training.evals.shown import shown_eval, shown_item, shown_run

router = APIRouter(prefix="/v1/evals", tags=["evals"])
RunStatus = Literal["queued", "in_progress", "completed", "canceled", "failed"]


def runner_of(request: Request) -> EvalRunner:
    found: EvalRunner = request.app.state.evals
    return found


@router.post("", status_code=201)
async def create_eval(request: Request, body: NewEval, key: JobsKey) -> dict[str, Any]:
    """Creates an eval: the fields of its items, and the graders of its testing criteria."""
    body.testing_criteria = [training_of(request).completed(each) for each in body.testing_criteria]
    await asyncio.to_thread(check_criteria, body.testing_criteria)
    for each in body.testing_criteria:
        if isinstance(each.get("model"), str):
            key.may_use(each["model"])
    config = body.data_source_config.model_dump()
    made = await runner_of(request).evals.create(
        key.id, body.name, config, body.testing_criteria, body.metadata
    )
    return shown_eval(made)


@router.get("")
async def list_evals(
    request: Request,
    key: JobsKey,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    order_by: Literal["created_at", "updated_at"] = "created_at",
) -> ObjectList:
    """Evals of the key, the oldest first by default."""
    query = PageQuery(after, limit, order)
    page = await runner_of(request).evals.page(owner_of(key), query, order_by == "updated_at")
    return object_list([shown_eval(each) for each in page.data], page.has_more)


@router.get("/{eval_id}")
async def retrieve_eval(request: Request, eval_id: str, key: JobsKey) -> dict[str, Any]:
    """One eval."""
    return shown_eval(await runner_of(request).evals.get(eval_id, owner_of(key)))


@router.post("/{eval_id}")
async def update_eval(request: Request, eval_id: str, body: EvalChange, key: JobsKey) -> dict[str, Any]:
    """Changes the name or the metadata."""
    changes = body.model_dump(include=body.model_fields_set)
    if changes.get("name", "") is None:
        raise InvalidRequest("name is a text.", param="name")
    return shown_eval(await runner_of(request).evals.update(eval_id, owner_of(key), changes))


@router.delete("/{eval_id}")
async def delete_eval(request: Request, eval_id: str, key: JobsKey) -> dict[str, Any]:
    """Deletes an eval with its runs and their items."""
    runner = runner_of(request)
    for group in await runner.evals.delete(eval_id, owner_of(key)):
        await runner.drop(group)
    return {"object": "eval.deleted", "deleted": True, "eval_id": eval_id}


@router.post("/{eval_id}/runs", status_code=201)
async def create_run(request: Request, eval_id: str, body: NewRun, key: JobsKey) -> dict[str, Any]:
    """Starts a run: each item of the data source is sampled, unless it has a sample, and graded."""
    runner, source = runner_of(request), body.data_source
    await runner.evals.get(eval_id, owner_of(key))
    check_source(source)
    if not isinstance(source, JsonlSource) and source.model is not None:
        key.may_use(source.model)
        known = runner.queue.models()
        if known is not None and source.model not in known:
            raise NotFound(
                f"The model {source.model!r} does not exist: GET /v1/models lists the models.",
                param="data_source.model",
                code="model_not_found",
            )
    if isinstance(source.source, FileId):
        await runner.objects.files.get(source.source.id, owner_of(key))
    await request.app.state.usage.check_quota(key)
    told = source.model_dump(exclude_unset=True)
    made = await runner.runs.create(eval_id, owner_of(key), key.id, body.name, told, body.metadata)
    return _shown(request, made)


@router.get("/{eval_id}/runs")
async def list_runs(
    request: Request,
    eval_id: str,
    key: JobsKey,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    status: RunStatus | None = None,
) -> ObjectList:
    """Runs of an eval, the oldest first by default."""
    query = PageQuery(after, limit, order)
    page = await runner_of(request).runs.page(eval_id, owner_of(key), query, status)
    return object_list([_shown(request, each) for each in page.data], page.has_more)


@router.get("/{eval_id}/runs/{run_id}")
async def retrieve_run(request: Request, eval_id: str, run_id: str, key: JobsKey) -> dict[str, Any]:
    """One run with its counts."""
    return _shown(request, await runner_of(request).runs.get(run_id, eval_id, owner_of(key)))


@router.post("/{eval_id}/runs/{run_id}/cancel")
@router.post("/{eval_id}/runs/{run_id}")
async def cancel_run(request: Request, eval_id: str, run_id: str, key: JobsKey) -> dict[str, Any]:
    """Cancels a run; results until then stay."""
    runner = runner_of(request)
    run = await runner.runs.cancel(run_id, eval_id, owner_of(key))
    await runner.drop(run.queued_as)
    return _shown(request, run)


@router.delete("/{eval_id}/runs/{run_id}")
async def delete_run(request: Request, eval_id: str, run_id: str, key: JobsKey) -> dict[str, Any]:
    """Deletes a run with its items; one that has not ended is stopped."""
    runner = runner_of(request)
    run = await runner.runs.delete(run_id, eval_id, owner_of(key))
    if run.ended is None:
        await runner.drop(run.queued_as)
    return {"object": "eval.run.deleted", "deleted": True, "run_id": run_id}


@router.get("/{eval_id}/runs/{run_id}/output_items")
async def list_output_items(
    request: Request,
    eval_id: str,
    run_id: str,
    key: JobsKey,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    status: Literal["pass", "fail", "error"] | None = None,
) -> ObjectList:
    """Graded items of a run in the order of the data source."""
    runner, owner = runner_of(request), owner_of(key)
    run = await runner.runs.get(run_id, eval_id, owner)
    page = await runner.runs.output_page(run_id, eval_id, owner, PageQuery(after, limit, order), status)
    return object_list([shown_item(each, run) for each in page.data], page.has_more)


@router.get("/{eval_id}/runs/{run_id}/output_items/{output_item_id}")
async def retrieve_output_item(
    request: Request, eval_id: str, run_id: str, output_item_id: str, key: JobsKey
) -> dict[str, Any]:
    """One graded item."""
    runner, owner = runner_of(request), owner_of(key)
    run = await runner.runs.get(run_id, eval_id, owner)
    return shown_item(await runner.runs.output(output_item_id, run_id, eval_id, owner), run)


def _shown(request: Request, run: StoredRun) -> dict[str, Any]:
    return shown_run(run, str(request.base_url))
