"""Files of clients: upload, list, retrieve, download, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.objects.blobs import NewBlob
from rondo.control.objects.files import StoredFile, check_life, check_purpose, new_file
from rondo.control.objects.pages import Order, PageQuery
from rondo.gateway.queued.objects import Objects
from rondo.gateway.routes.form import UploadForm, receive_form
from rondo.gateway.routes.security import FilesKey, owner_of

router = APIRouter(tags=["files"])
SECOND = 1_000_000
GONE = 499
FORM_FIELDS = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}


class ShownFile(BaseModel):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    """Seconds since the epoch."""
    expires_at: int | None
    filename: str
    purpose: str
    status: str = "processed"
    status_details: str | None = None


class FileList(BaseModel):
    object: str = "list"
    data: list[ShownFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    id: str
    object: str
    deleted: bool = True


@router.post(
    "/v1/files",
    response_model=ShownFile,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file", "purpose"],
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "purpose": {"type": "string"},
                            "expires_after[anchor]": {"type": "string"},
                            "expires_after[seconds]": {"type": "integer"},
                        },
                    }
                }
            },
        }
    },
)
async def create_file(request: Request, key: FilesKey) -> Any:
    """Uploads a file of any size below the limit. It is on the disk when the response arrives."""
    objects = objects_of(request)
    try:
        form, blob = await receive_blob(request, "file", await objects.files.left(key.id))
    except ClientDisconnect:
        return Response(status_code=GONE)
    try:
        check_fields(form, FORM_FIELDS)
        purpose = form.fields.get("purpose", "")
        check_purpose(purpose)
        life = _life_of(form.fields)
        file = new_file(key.id, form.filename or "", purpose, blob.size, life, objects.config.files)
        return shown_file(await objects.files.add(file, blob))
    finally:
        await asyncio.to_thread(blob.drop)


@router.get("/v1/files")
async def list_files(
    request: Request,
    key: FilesKey,
    after: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Order = "desc",
    purpose: Annotated[str | None, Query(max_length=100)] = None,
) -> FileList:
    """Files of the key, the newest first; an admin lists those of all keys."""
    page = await objects_of(request).files.page(owner_of(key), PageQuery(after, limit, order), purpose)
    return FileList(**list_of([shown_file(each) for each in page.data], page.has_more))


def list_of(data: Sequence[Any], more: bool) -> dict[str, Any]:
    """A page of a list in OpenAI's shape; the objects are models or dictionaries."""
    ids = [each["id"] if isinstance(each, dict) else each.id for each in (*data[:1], *data[-1:])]
    first, last = ids or (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


@router.get("/v1/files/{id}")
async def retrieve_file(request: Request, id: str, key: FilesKey) -> ShownFile:
    """One file."""
    return shown_file(await objects_of(request).files.get(id, owner_of(key)))


@router.get("/v1/files/{id}/content", response_class=FileResponse)
async def file_content(request: Request, id: str, key: FilesKey) -> Response:
    """The content, of which a `Range` header selects a part."""
    objects = objects_of(request)
    file = await objects.files.get(id, owner_of(key))
    path = objects.blobs.kept(id)
    try:
        stat = await asyncio.to_thread(path.stat)
    except FileNotFoundError:
        raise NotFound(f"The content of {id} is missing on the disk of the gateway.", param="id") from None
    headers = {"X-Content-Type-Options": "nosniff"}
    return FileResponse(path, 200, headers, "application/octet-stream", None, file.filename, stat)


@router.delete("/v1/files/{id}")
async def delete_file(request: Request, id: str, key: FilesKey) -> Deleted:
    """Deletes a file. A batch in progress continues."""
    await objects_of(request).files.delete(id, owner_of(key))
    return Deleted(id=id, object="file")


async def receive_blob(request: Request, field: str, limit: int) -> tuple[UploadForm, NewBlob]:
    """The form, and the content of its file on the disk, which the caller keeps or drops."""
    objects = objects_of(request)
    blob = await asyncio.to_thread(objects.blobs.new)

    async def write(data: bytes) -> None:
        await asyncio.to_thread(blob.write, data)

    try:
        return await receive_form(request, field, limit, objects.config.body_seconds, write), blob
    except BaseException:
        await asyncio.shield(asyncio.to_thread(blob.drop))
        raise


def check_fields(form: UploadForm, known: set[str]) -> None:
    if unknown := sorted(form.fields.keys() - known):
        raise InvalidRequest(
            f"The form has an unknown field {unknown[0]!r}; known: {', '.join(sorted(known))}.",
            param=unknown[0],
            code="unknown_field",
        )


def objects_of(request: Request) -> Objects:
    objects: Objects = request.app.state.objects
    return objects


def shown_file(file: StoredFile) -> ShownFile:
    return ShownFile(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created // SECOND,
        expires_at=None if file.expires is None else file.expires // SECOND,
        filename=file.filename,
        purpose=file.purpose,
    )


def _life_of(fields: dict[str, str]) -> int | None:
    given = {name: fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    if given == {"anchor": None, "seconds": None}:
        return None
    seconds = given["seconds"] or ""
    return check_life(given["anchor"], int(seconds) if seconds.isdigit() and len(seconds) < 12 else None)
