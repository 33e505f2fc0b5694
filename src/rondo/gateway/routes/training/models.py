"""Deletion of fine-tuned models, as in OpenAI's API."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request
from pydantic import BaseModel

from rondo.base.errors import NotFound
from rondo.gateway.routes.security import JobsKey, owner_of
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.routes.training.registry import service_of
from rondo.gateway.training.results import create_results

router = APIRouter(prefix="/v1/models", tags=["fine-tuning"])


class DeletedModel(BaseModel):
    id: str
    object: str = "model"
    deleted: bool = True


@router.delete("/{name:path}")
async def delete_model(request: Request, name: str, key: JobsKey) -> DeletedModel:
    """Deletes the model of a job of the key with its checkpoints. The job, its events and its result files stay."""
    training = training_of(request)
    row = None
    with suppress(NotFound):
        row = await training.book.get(name, owner_of(key))
    if row is None or row.result != name or row.state != "succeeded":
        raise NotFound(
            f"{name[:200]!r} is no fine-tuned model of this key: `fine_tuned_model` of a job names it. "
            "DELETE /v1/registry/MODEL removes other models.",
            param="model",
            code="model_not_found",
        )
    await create_results(training.objects, row)
    await service_of(request).delete(row)
    return DeletedModel(id=name)
