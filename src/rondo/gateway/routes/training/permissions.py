"""OpenAI's permissions of checkpoints: other keys that may use a fine-tuned model. A project is an API key here."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from rondo.base.errors import NotFound
from rondo.control.key import Key
from rondo.control.keys import Keys
from rondo.gateway.auth import in_time
from rondo.gateway.routes.security import AdminKey
from rondo.gateway.routes.training.fine_tuning import After, Limit, ObjectList, object_list, page_of
from rondo.gateway.training.shown import seconds

router = APIRouter(prefix="/v1/fine_tuning/checkpoints/{checkpoint}/permissions", tags=["fine-tuning"])


class NewPermissions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    project_ids: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        min_length=1, max_length=100
    )
    """Ids of keys, as `rondo keys list` prints them."""


@router.post("")
async def create_permissions(
    request: Request, checkpoint: str, body: NewPermissions, key: AdminKey
) -> ObjectList:
    """Adds the model to the allowed models of the keys."""
    await in_time(_keys(request).permit(body.project_ids, checkpoint))
    request.app.state.auth.forget()
    found = [each for each in await _permitted(request, checkpoint) if each.id in body.project_ids]
    return object_list([_shown(checkpoint, each) for each in found], False)


@router.get("")
async def list_permissions(
    request: Request,
    checkpoint: str,
    key: AdminKey,
    after: After = None,
    limit: Limit = 10,
    order: Literal["ascending", "descending"] = "descending",
    project_id: Annotated[str | None, Query(max_length=100)] = None,
) -> ObjectList:
    """Keys whose list of models has this one."""
    found = await _permitted(request, checkpoint)
    ordered = found[::-1] if order == "descending" else found
    data = [_shown(checkpoint, each) for each in ordered if project_id in (None, each.id)]
    return page_of(data, after, limit)


@router.delete("/{permission}")
async def delete_permission(
    request: Request, checkpoint: str, permission: str, key: AdminKey
) -> dict[str, Any]:
    """Removes the model from the allowed models of the key."""
    for each in await _permitted(request, checkpoint):
        if _id(checkpoint, each) == permission:
            await in_time(_keys(request).forbid(each.id, checkpoint))
            request.app.state.auth.forget()
            return {"id": permission, "object": "checkpoint.permission", "deleted": True}
    raise NotFound(f"There is no permission {permission[:100]!r}.", param="permission_id")


def _keys(request: Request) -> Keys:
    found: Keys = request.app.state.keys
    return found


async def _permitted(request: Request, model: str) -> list[Key]:
    keys = await in_time(_keys(request).all())
    return [each for each in keys if each.revoked is None and model in each.rights.models]


def _id(model: str, key: Key) -> str:
    return f"cp_{hashlib.sha256(f'{model} {key.id}'.encode()).hexdigest()[:24]}"


def _shown(model: str, key: Key) -> dict[str, Any]:
    return {
        "id": _id(model, key),
        "object": "checkpoint.permission",
        "created_at": seconds(key.created),
        "project_id": key.id,
    }
