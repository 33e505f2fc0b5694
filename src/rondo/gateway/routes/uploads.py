"""Uploads in parts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from rondo.control.objects.files import StoredFile, check_life, check_purpose
from rondo.control.objects.uploads import PART_BYTES, Upload
from rondo.gateway.routes.files import (
    GONE,
    SECOND,
    ShownFile,
    check_fields,
    objects_of,
    receive_blob,
    shown_file,
)
from rondo.gateway.routes.security import FilesKey, owner_of

router = APIRouter(tags=["uploads"])


class Life(BaseModel):
    """Time after the creation of a file at which it is deleted."""

    model_config = ConfigDict(extra="forbid")
    anchor: str
    seconds: int

    def checked(self, param: str) -> int:
        return check_life(self.anchor, self.seconds, param)


class NewUpload(BaseModel):
    model_config = ConfigDict(extra="forbid")
    bytes: int = Field(ge=0)
    filename: str = Field(min_length=1, max_length=1000)
    mime_type: str = Field(max_length=200)
    purpose: str
    expires_after: Life | None = None


class Completion(BaseModel):
    model_config = ConfigDict(extra="forbid")
    part_ids: Annotated[list[str], Field(max_length=10_000)]
    md5: Annotated[str | None, Field(pattern=r"^[0-9a-fA-F]{32}$")] = None


class ShownUpload(BaseModel):
    id: str
    object: str = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    file: ShownFile | None = None


class ShownPart(BaseModel):
    id: str
    object: str = "upload.part"
    created_at: int
    upload_id: str


@router.post("/v1/uploads")
async def create_upload(request: Request, body: NewUpload, key: FilesKey) -> ShownUpload:
    """Begins an upload, to which parts are added within `files.upload_seconds`."""
    check_purpose(body.purpose)
    life = None if body.expires_after is None else body.expires_after.checked("expires_after")
    uploads = objects_of(request).uploads
    return _shown(await uploads.create(key.id, body.filename, body.purpose, body.bytes, life))


@router.post("/v1/uploads/{id}/parts", response_model=ShownPart)
async def add_part(request: Request, id: str, key: FilesKey) -> Any:
    """Adds a part of at most 64 MiB, as the field `data` of a form. Parts may arrive in parallel and in any order."""
    objects = objects_of(request)
    upload = await objects.uploads.pending(id, owner_of(key))
    try:
        form, blob = await receive_blob(request, "data", PART_BYTES)
    except ClientDisconnect:
        return Response(status_code=GONE)
    try:
        check_fields(form, set())
        part = await objects.uploads.add_part(upload, blob)
    finally:
        await asyncio.to_thread(blob.drop)
    return ShownPart(id=part.id, created_at=part.created // SECOND, upload_id=part.upload)


@router.post("/v1/uploads/{id}/complete")
async def complete_upload(request: Request, id: str, body: Completion, key: FilesKey) -> ShownUpload:
    """Makes a file of the parts in the stated order. Repeating the request returns the same file."""
    uploads = objects_of(request).uploads
    upload, file = await uploads.complete(id, owner_of(key), body.part_ids, body.md5)
    return _shown(upload, file)


@router.post("/v1/uploads/{id}/cancel")
async def cancel_upload(request: Request, id: str, key: FilesKey) -> ShownUpload:
    """Deletes the parts."""
    return _shown(await objects_of(request).uploads.cancel(id, owner_of(key)))


def _shown(upload: Upload, file: StoredFile | None = None) -> ShownUpload:
    return ShownUpload(
        id=upload.id,
        bytes=upload.bytes,
        created_at=upload.created // SECOND,
        expires_at=upload.expires // SECOND,
        filename=upload.filename,
        purpose=upload.purpose,
        status=upload.state,
        file=None if file is None else shown_file(file),
    )
