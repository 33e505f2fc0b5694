r"""Uploads in parts: a file of which no single request has all bytes.

pending -> completed     its parts, in the order that the client states, are a file
       \-> cancelled
       \-> expired       it was pending for too long
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.objects.blobs import Blobs, NewBlob
from rondo.control.objects.files import Files, StoredFile, file_of, insert_file, new_file, plain_name
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import upload_parts, uploads

PART_BYTES = 64 << 20
"""Largest part, as OpenAI has it."""
MOST_PARTS = 10_000
KEPT_SECONDS = 86400
"""Time for which an ended upload can be retrieved."""

_columns = uploads.c
UPLOAD = (
    _columns.id,
    _columns.owner,
    _columns.filename,
    _columns.purpose,
    _columns.bytes,
    _columns.expires_after,
    _columns.state,
    _columns.file,
    _columns.created,
    _columns.expires,
)


@dataclass(frozen=True)
class Upload:
    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    expires_after: int | None
    """Life of the file, in seconds."""
    state: str
    file: str | None
    created: int
    expires: int


@dataclass(frozen=True)
class UploadPart:
    id: str
    upload: str
    bytes: int
    created: int


class Uploads:
    def __init__(self, store: Store, blobs: Blobs, files: Files) -> None:
        self.store, self.blobs, self.files = store, blobs, files

    def create(
        self, owner: str, filename: str, purpose: str, size: int, expires_after: int | None
    ) -> Pending[Upload]:
        limit = self.files.config.file_bytes
        if size > limit:
            raise InvalidRequest(
                f"bytes is {size:,}, and the largest file has {limit:,}: an admin can raise files.file_bytes.",
                param="bytes",
                code="file_too_large",
            )
        now = microseconds()
        expires = now + int(self.files.config.upload_seconds * MICROSECONDS)
        id = f"upload_{secrets.token_hex(16)}"
        upload = Upload(
            id, owner, plain_name(filename), purpose, size, expires_after, "pending", None, now, expires
        )

        def work(db: sa.Connection) -> Upload:
            self.files.check_quota(db, owner, size)
            db.execute(sa.insert(uploads), vars(upload))
            return upload

        return self.store.write(work)

    def pending(self, id: str, owner: str | None) -> Pending[Upload]:
        """The upload, if it takes parts."""

        def work(db: sa.Connection) -> Upload:
            upload = _upload_of(db, id, owner)
            _require_pending(upload)
            return upload

        return self.store.read(work)

    def add_part(self, upload: Upload, blob: NewBlob) -> Pending[UploadPart]:
        part = UploadPart(f"part_{secrets.token_hex(16)}", upload.id, blob.size, microseconds())
        path = self.blobs.part(upload.id, part.id)

        def insert(db: sa.Connection) -> None:
            locked = _upload_of(db, upload.id, None, lock=True)
            _require_pending(locked)
            number, size = db.execute(_SUMS.where(upload_parts.c.upload == upload.id)).one()
            if number >= MOST_PARTS or size + part.bytes > 2 * upload.bytes + PART_BYTES:
                raise InvalidRequest(
                    f"{upload.id} has {number} parts of {size:,} bytes, which is too much for a file of "
                    f"{upload.bytes:,} bytes: complete or cancel it.",
                    param="data",
                )
            db.execute(sa.insert(upload_parts), vars(part))

        def work() -> UploadPart:
            blob.keep(path)
            try:
                self.store.write(insert).result()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            return part

        return self.store.background(work)

    def complete(
        self, id: str, owner: str | None, part_ids: Sequence[str], md5: str | None
    ) -> Pending[tuple[Upload, StoredFile]]:
        """Joins the parts. Repeating the call, after a lost answer, returns the same file."""

        def work() -> tuple[Upload, StoredFile]:
            upload = self.store.read(lambda db: _upload_of(db, id, owner)).result()
            if upload.state != "completed":
                self._join(upload, part_ids, md5)
            done = self.store.read(lambda db: self._completed(db, id)).result()
            self.blobs.remove_parts(id)
            return done

        return self.store.background(work)

    def _join(self, upload: Upload, part_ids: Sequence[str], md5: str | None) -> None:
        _require_pending(upload)
        known = self.store.read(lambda db: _part_sizes(db, upload.id)).result()
        if unknown := [part for part in part_ids if part not in known]:
            raise InvalidRequest(f"{upload.id} has no part {unknown[0]!r}.", param="part_ids")
        if len(set(part_ids)) != len(part_ids):
            raise InvalidRequest("part_ids lists a part twice.", param="part_ids")
        if (size := sum(known[part] for part in part_ids)) != upload.bytes:
            raise InvalidRequest(
                f"The parts have {size:,} bytes, and the upload was created for {upload.bytes:,}: list all parts, or "
                "create the upload with the file's size.",
                param="part_ids",
                code="size_mismatch",
            )
        blob, digest = self.blobs.join([self.blobs.part(upload.id, part) for part in part_ids])
        try:
            if md5 is not None and md5.lower() != digest:
                raise InvalidRequest(
                    f"The file's MD5 is {digest}, not {md5}: the content changed on its way, or the parts are in "
                    "another order.",
                    param="md5",
                    code="checksum_mismatch",
                )
            self._publish(upload, blob)
        except BaseException:
            blob.drop()
            raise

    def _publish(self, upload: Upload, blob: NewBlob) -> None:
        file = new_file(
            upload.owner, upload.filename, upload.purpose, blob.size, upload.expires_after, self.files.config
        )
        blob.keep(self.blobs.kept(file.id))

        def work(db: sa.Connection) -> bool:
            if _upload_of(db, upload.id, None, lock=True).state != "pending":
                return False
            db.execute(sa.delete(upload_parts).where(upload_parts.c.upload == upload.id))
            insert_file(db, file)
            changed = {"state": "completed", "file": file.id}
            db.execute(sa.update(uploads).where(_columns.id == upload.id), changed)
            return True

        published = False
        try:
            published = self.store.write(work).result()
        finally:
            if not published:
                self.blobs.remove(file.id)

    def _completed(self, db: sa.Connection, id: str) -> tuple[Upload, StoredFile]:
        upload = _upload_of(db, id, None)
        if upload.file is None:
            _require_pending(upload)
            raise InvalidRequest(f"{id} was not completed: repeat the request.")
        return upload, file_of(db, upload.file, None)

    def cancel(self, id: str, owner: str | None) -> Pending[Upload]:
        def change(db: sa.Connection) -> Upload:
            upload = _upload_of(db, id, owner, lock=True)
            if upload.state != "cancelled":
                _require_pending(upload)
            db.execute(sa.update(uploads).where(_columns.id == id).values(state="cancelled"))
            db.execute(sa.delete(upload_parts).where(upload_parts.c.upload == id))
            return _upload_of(db, id, owner)

        def work() -> Upload:
            upload = self.store.write(change).result()
            self.blobs.remove_parts(id)
            return upload

        return self.store.background(work)

    def sweep(self) -> Pending[int]:
        """Deletes expired and ended uploads with their parts. The number of them."""
        before = microseconds() - KEPT_SECONDS * MICROSECONDS

        def change(db: sa.Connection) -> list[str]:
            old = sa.select(_columns.id).where(_columns.expires <= before).limit(100)
            ids = list(db.execute(old.with_for_update(skip_locked=True)).scalars())
            if ids:
                db.execute(sa.delete(upload_parts).where(upload_parts.c.upload.in_(ids)))
                db.execute(sa.delete(uploads).where(_columns.id.in_(ids)))
            return ids

        def expire(db: sa.Connection) -> list[str]:
            late = sa.select(_columns.id).where(
                _columns.state == "pending", _columns.expires <= microseconds()
            )
            ids = list(db.execute(late.limit(100).with_for_update(skip_locked=True)).scalars())
            if ids:
                db.execute(sa.update(uploads).where(_columns.id.in_(ids)).values(state="expired"))
                db.execute(sa.delete(upload_parts).where(upload_parts.c.upload.in_(ids)))
            return ids

        def work() -> int:
            total = 0
            for step in (expire, change):
                while ids := self.store.write(step).result():
                    for id in ids:
                        self.blobs.remove_parts(id)
                    total += len(ids)
            return total

        return self.store.background(work)


_SUMS = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(upload_parts.c.bytes), 0))


def _part_sizes(db: sa.Connection, upload: str) -> dict[str, int]:
    rows = db.execute(
        sa.select(upload_parts.c.id, upload_parts.c.bytes).where(upload_parts.c.upload == upload)
    )
    return {row.id: row.bytes for row in rows}


def _upload_of(db: sa.Connection, id: str, owner: str | None, *, lock: bool = False) -> Upload:
    wanted = sa.select(*UPLOAD).where(_columns.id == id)
    row: Any = db.execute(wanted.with_for_update() if lock else wanted).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(f"No such Upload object: {id[:100]}", param="id", code="upload_not_found")
    upload = Upload(*row)
    late = upload.state == "pending" and upload.expires <= microseconds()
    return replace(upload, state="expired") if late else upload


def _require_pending(upload: Upload) -> None:
    if upload.state != "pending":
        raise InvalidRequest(
            f"{upload.id} is {upload.state}: create another upload.",
            param="id",
            code=f"upload_{upload.state}",
        )
