"""The registry of models: list, register, aliases, promotion, rollback, load, unload."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from rondo.control.jobs.registry.rows import ModelKind, RegisteredModel, Stage
from rondo.gateway.auth import check_admin
from rondo.gateway.routes.security import AnyKey, JobsKey, owner_of
from rondo.gateway.training.registry.service import RegistryService
from rondo.gateway.training.shown import seconds

router = APIRouter(prefix="/v1/registry", tags=["registry"])
Kind = Annotated[ModelKind | None, Query()]


class Lineage(BaseModel):
    """Origin of a model. Fields are null where they are unknown."""

    job_kind: str | None = None
    """pretrain, sft, preference, reward or rl"""
    base: str | None = None
    """Name of the model that was trained."""
    parent: str | None = None
    """Id of the base in the registry, if it is registered: the edges of the lineage graph."""
    data: str | None = None
    """Hash of the training data."""
    config: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    """Final loss, reward or accuracy, and held-out scores."""
    steps: int | None = None


class RegistryEntry(BaseModel):
    """A registered model. Times are seconds since the epoch."""

    id: str
    """Hash of its job, HASH@STEP for a checkpoint, or the digest of an imported model. It answers requests."""
    object: str = "registry.model"
    name: str
    """Name that it shares with its other versions."""
    aliases: list[str]
    """Further names that stand for it."""
    job: str
    step: int | None
    kind: ModelKind
    base: str | None
    digest: str | None
    """SHA-256 over the hashes of its files; null until it was computed."""
    bytes: int | None
    source: str
    """Folder or URL of its files."""
    stage: Stage
    """production: the name stands for it; archived: it did before."""
    state: str
    """unloaded, loading, ready, failed; scoring for a reward model, which answers no requests"""
    error: str | None
    """Cause of a failed load."""
    lineage: Lineage
    owner: str
    created: int


class RegistryList(BaseModel):
    object: str = "list"
    data: list[RegistryEntry]
    has_more: bool


class AliasEntry(BaseModel):
    alias: str
    model: str
    """Id of the model."""
    promoted: bool
    """Whether it is the name of several versions, one of which was promoted."""
    previous: list[str]
    """Ids of earlier models, the newest first; a rollback returns to the first one."""
    owner: str
    created: int


class AliasList(BaseModel):
    object: str = "list"
    data: list[AliasEntry]


class NewRegistryEntry(BaseModel):
    """A model to register: the result or a checkpoint of a job, or with an admin's key a folder of the gateway's
    machine or a URL such as s3://BUCKET/FOLDER."""

    model_config = ConfigDict(extra="forbid")
    job: str | None = Field(default=None, min_length=1, max_length=256)
    """Name, id or hash of a job."""
    step: int | None = Field(default=None, ge=0)
    """Step of a checkpoint of the job; its final model by default."""
    source: str | None = Field(default=None, min_length=1, max_length=2048)
    name: str | None = Field(default=None, min_length=1, max_length=128)
    """By default the job's name."""
    base: str | None = Field(default=None, min_length=1, max_length=256)
    """Base model of an adapter, if its own files do not name it."""


class AliasTarget(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str = Field(min_length=1, max_length=256)


class Removed(BaseModel):
    id: str
    object: str = "registry.model.deleted"
    deleted: bool = True


@router.get("")
async def list_registry(
    request: Request,
    key: AnyKey,
    name: Annotated[str | None, Query(max_length=256)] = None,
    job: Annotated[str | None, Query(max_length=256)] = None,
    kind: Kind = None,
    stage: Annotated[Stage | None, Query()] = None,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> RegistryList:
    """Registered models that the key may use, the newest first."""
    service = service_of(request)
    rows = await service.usable(key, after, limit + 1, name=name, job=job, kind=kind, stage=stage)
    return RegistryList(data=await _shown(service, rows[:limit]), has_more=len(rows) > limit)


@router.post("", status_code=201)
async def register_model(request: Request, body: NewRegistryEntry, key: JobsKey) -> RegistryEntry:
    """Registers a model; one that is registered already is updated."""
    service = service_of(request)
    if body.source is not None:
        check_admin(key)
    row = await service.register(key, body.job, body.step, body.source, body.name, body.base)
    return await _one(service, row)


@router.get("/aliases")
async def list_aliases(request: Request, key: AnyKey) -> AliasList:
    """Aliases and promoted names, with the models that they stood for before."""
    found = await service_of(request).book.aliases()
    usable = set(key.usable(each.alias for each in found))
    shown = [
        AliasEntry(
            alias=each.alias,
            model=each.model,
            promoted=each.promoted,
            previous=list(each.previous),
            owner=each.owner,
            created=seconds(each.created) or 0,
        )
        for each in found
        if each.alias in usable
    ]
    return AliasList(data=shown)


@router.put("/aliases/{alias}")
async def set_alias(request: Request, alias: str, body: AliasTarget, key: JobsKey) -> RegistryEntry:
    """Points an alias at a model; requests for the alias are answered by it from then on."""
    service = service_of(request)
    return await _one(service, await service.point(alias, body.model, key))


@router.delete("/aliases/{alias}")
async def delete_alias(request: Request, alias: str, key: JobsKey) -> Removed:
    """Removes an alias, or the promotion of a name."""
    service = service_of(request)
    await service.book.drop_alias(alias, owner_of(key))
    await service.refresh()
    return Removed(id=alias, object="registry.alias.deleted")


@router.get("/{model}")
async def show_registered(request: Request, model: str, key: AnyKey) -> RegistryEntry:
    """The model that a name, an alias, `latest`, a hash or `HASH@STEP` stands for."""
    service = service_of(request)
    row = await service.find(model)
    if not service.is_usable(key, row):
        key.may_use(model)
    return await _one(service, row)


@router.delete("/{model}")
async def remove_registered(request: Request, model: str, key: JobsKey) -> Removed:
    """Unloads a model and removes it from the registry. Its files stay: see `rondo job rm`."""
    service = service_of(request)
    return Removed(id=(await service.remove(model, owner_of(key))).id)


@router.post("/{model}/promote")
async def promote_model(request: Request, model: str, key: JobsKey) -> RegistryEntry:
    """Makes a version the one that its name stands for."""
    service = service_of(request)
    row = await service.book.promote(model, owner_of(key))
    await service.refresh()
    return await _one(service, row)


@router.post("/{model}/rollback")
async def roll_back(request: Request, model: str, key: JobsKey) -> RegistryEntry:
    """Returns a name or an alias to the model that it stood for before."""
    service = service_of(request)
    row = await service.book.rollback(model, owner_of(key))
    await service.refresh()
    return await _one(service, row)


@router.post("/{model}/load")
async def load_registered(request: Request, model: str, key: JobsKey) -> RegistryEntry:
    """Loads a model and waits until it answers; a request for it does the same."""
    service = service_of(request)
    row = await service.find(model)
    if not service.is_usable(key, row):
        key.may_use(model)
    await service.ensure(row.id)
    return await _one(service, row)


@router.post("/{model}/unload")
async def unload_registered(request: Request, model: str, key: JobsKey) -> RegistryEntry:
    """Unloads a model; its running requests finish, and the next request loads it again."""
    service = service_of(request)
    row = await service.find(model)
    service.require_owner(row, key)
    await service.unload(row)
    return await _one(service, row)


def service_of(request: Request) -> RegistryService:
    found: RegistryService = request.app.state.registry
    return found


async def _one(service: RegistryService, row: RegisteredModel) -> RegistryEntry:
    return (await _shown(service, [row]))[0]


async def _shown(service: RegistryService, rows: list[RegisteredModel]) -> list[RegistryEntry]:
    return [_entry(service, row) for row in rows]


def _entry(service: RegistryService, row: RegisteredModel) -> RegistryEntry:
    told, (state, error) = row.lineage, service.state_of(row)
    known = {name: told[name] for name in Lineage.model_fields if told.get(name) is not None}
    return RegistryEntry(
        id=row.id,
        name=row.name,
        aliases=service.names_of(row.id),
        job=row.job,
        step=row.step,
        kind=row.kind,
        base=row.base,
        digest=row.digest,
        bytes=row.bytes,
        source=row.source,
        stage=row.stage,
        state=state,
        error=error,
        lineage=Lineage(**known | {"parent": service.parent_of(row)}),
        owner=row.owner,
        created=seconds(row.created) or 0,
    )
