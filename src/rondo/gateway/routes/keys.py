"""API keys and usage."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from rondo.base.errors import Forbidden, StorageError, Unavailable
from rondo.control.key import SCOPES, Key, Rights, Role, Scope, ServiceTier
from rondo.control.keys import LOCAL
from rondo.control.store.clock import microseconds
from rondo.gateway.auth import in_time
from rondo.gateway.routes.security import AdminKey, AnyKey

router = APIRouter(tags=["keys"])
SECOND = 1_000_000
Quota = Annotated[int | None, Field(ge=1, le=2**53)]


class NewKey(BaseModel):
    """An API key to create. Without `models` it may use each model; without a limit it has none."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=100)
    role: Role = "user"
    scopes: list[Scope] = Field(default=list(SCOPES))
    models: list[str] = []
    requests_per_minute: Quota = None
    tokens_per_minute: Quota = None
    tokens_per_day: Quota = None
    expires_in: Annotated[float | None, Field(gt=0, le=10 * 366 * 86400)] = None
    """Seconds from now."""
    service_tier: ServiceTier = "default"
    """Highest service tier of its requests."""


class ShownKey(BaseModel):
    id: str
    name: str
    role: Role
    scopes: list[str]
    models: list[str]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens_per_day: int | None
    created: float
    """Seconds since the epoch."""
    expires: float | None
    revoked: float | None
    service_tier: ServiceTier
    key: str | None = None
    """The text of a new key. It is shown once."""


class KeyList(BaseModel):
    object: str = "list"
    data: list[ShownKey]


class UsageRow(BaseModel):
    key: str
    day: str
    model: str
    requests: int
    input_tokens: int
    output_tokens: int


class UsageList(BaseModel):
    object: str = "list"
    data: list[UsageRow]


@router.get("/v1/key")
async def own_key(key: AnyKey) -> ShownKey:
    """The key of this request and its rights."""
    return _shown(key)


@router.get("/v1/keys")
async def list_keys(request: Request, key: AdminKey) -> KeyList:
    """All keys, revoked ones included, without their text."""
    return KeyList(data=[_shown(each) for each in await in_time(request.app.state.keys.all())])


@router.post("/v1/keys", status_code=201)
async def create_key(request: Request, body: NewKey, key: AdminKey) -> ShownKey:
    """Creates a key. The response holds its text, which cannot be shown again."""
    expires = None if body.expires_in is None else microseconds() + int(body.expires_in * SECOND)
    rights = Rights(
        body.role,
        tuple(dict.fromkeys(body.scopes)),
        tuple(dict.fromkeys(body.models)),
        body.requests_per_minute,
        body.tokens_per_minute,
        body.tokens_per_day,
        expires,
        body.service_tier,
    )
    made, text = await in_time(request.app.state.keys.make(body.name, rights))
    return _shown(made).model_copy(update={"key": text})


@router.delete("/v1/keys/{id}")
async def revoke_key(request: Request, id: str, key: AdminKey) -> ShownKey:
    """Revokes a key. Requests under way end; further ones are refused."""
    revoked = await in_time(request.app.state.keys.revoke(id))
    request.app.state.auth.forget()
    return _shown(revoked)


@router.get("/v1/usage")
async def usage(
    request: Request,
    key: AnyKey,
    of: Annotated[str | None, Query(alias="key", description="id of a key; an admin may name any")] = None,
    since: Annotated[
        str, Query(pattern=r"^(\d{4}-\d{2}-\d{2})?$", description="first day, as YYYY-MM-DD (UTC)")
    ] = "",
) -> UsageList:
    """Requests and tokens by key, day and model."""
    admin = key.rights.role == "admin"
    if of is not None and of != key.id and not admin:
        raise Forbidden("Usage of another key needs an admin's key.", code="admin_only")
    known = await in_time(request.app.state.keys.all()) if admin and of is None else ()
    with suppress(StorageError, Unavailable):  # a disk that is full can still be read
        await in_time(request.app.state.usage.flush())
    ids = [LOCAL.id, *(each.id for each in known)] if admin and of is None else [of or key.id]
    rows: list[UsageRow] = []
    for id in ids:
        found: list[Any] = await in_time(request.app.state.usage.usage(id, since))
        rows += [UsageRow(key=id, **vars(each)) for each in found]
    return UsageList(data=rows)


def _shown(key: Key) -> ShownKey:
    rights = key.rights
    return ShownKey(
        id=key.id,
        name=key.name,
        role=rights.role,
        scopes=list(rights.scopes),
        models=list(rights.models),
        requests_per_minute=rights.requests_per_minute,
        tokens_per_minute=rights.tokens_per_minute,
        tokens_per_day=rights.tokens_per_day,
        created=key.created / SECOND,
        expires=None if rights.expires is None else rights.expires / SECOND,
        revoked=None if key.revoked is None else key.revoked / SECOND,
        service_tier=rights.service_tier,
    )
