"""ScalarLM's view of the scheduler: jobs that have not ended, GPUs and nodes of the default launcher."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute

from rondo.base.errors import RondoError
from rondo.gateway.routes.security import AnyKey, JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.training.scalarlm.shown import squeue_text

router = APIRouter(tags=["scalarlm"])


@router.get("/v1/megatron/squeue")
@router.get("/slurm/squeue")
async def squeue(request: Request, key: JobsKey) -> dict[str, Any]:
    """Jobs of the key that have not ended, in the columns of Slurm's squeue, for each launcher."""
    training = training_of(request)
    rows = await training.book.unended(owner_of(key))
    return {"squeue_output": squeue_text(rows, training.config.jobs.time_limit), "error_message": None}


@router.get("/v1/megatron/gpu_count")
async def gpu_count(request: Request, key: AnyKey) -> dict[str, int]:
    """GPUs of the default launcher."""
    return {"gpu_count": sum(node.gpus for node in await training_of(request).nodes())}


@router.get("/v1/megatron/node_count")
async def node_count(request: Request, key: AnyKey) -> dict[str, int]:
    """Machines of the default launcher."""
    return {"node_count": len(await training_of(request).nodes())}


@router.get("/slurm/status")
async def slurm_status(request: Request, key: JobsKey) -> dict[str, Any]:
    """Queue and resources. Without an answer of the scheduler, its error is the queue's `error_message`."""
    queue = await squeue(request, key)
    try:
        nodes = await training_of(request).nodes()
    except RondoError as error:
        queue = {**queue, "error_message": error.message}
        return {"queue": queue, "resources": {"gpu_count": 0, "node_count": 0}, "status": "inactive"}
    resources = {"gpu_count": sum(node.gpus for node in nodes), "node_count": len(nodes)}
    return {"queue": queue, "resources": resources, "status": "active"}


@router.post("/slurm/cancel/{job}")
async def slurm_cancel(request: Request, job: str, key: JobsKey) -> dict[str, Any]:
    """Cancels a job at once; its process is ended."""
    row = await training_of(request).book.cancel(job, owner_of(key))
    return {"status": "success", "message": f"Job {row.id} cancelled successfully", "job_id": row.id}


@router.get("/slurm/endpoints")
async def slurm_endpoints(request: Request, key: AnyKey) -> dict[str, list[str]]:
    """Routes of the scheduler."""
    return {"endpoints": _endpoints("/slurm/")}


@router.get("/v1/megatron/endpoints")
async def megatron_endpoints(request: Request, key: AnyKey) -> dict[str, list[str]]:
    """Routes of training."""
    from rondo.gateway.routes.training.scalarlm import publish, train

    own = (*train.router.routes, *publish.router.routes)
    return {"endpoints": [*_told(own), *_endpoints("/v1/megatron/")]}


def _endpoints(prefix: str) -> list[str]:
    return _told(
        [route for route in router.routes if isinstance(route, APIRoute) and route.path.startswith(prefix)]
    )


def _told(routes: Any) -> list[str]:
    return [f"Path: {route.path}, Methods: {', '.join(sorted(route.methods))}" for route in routes]
