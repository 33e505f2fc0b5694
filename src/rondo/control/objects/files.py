"""Files of owners: a row in the store and a content on the disk. A row exists only while its content does."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from rondo.base.errors import InvalidRequest, NotFound, Overloaded
from rondo.control.config import FilesConfig
from rondo.control.objects.blobs import Blobs, NewBlob
from rondo.control.objects.pages import ObjectPage, PageQuery, rows_of_page
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import files, upload_parts, uploads

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""Purposes that a client may set; files of the gateway have others, such as `batch_output`."""
SHORTEST_LIFE, LONGEST_LIFE = 3600, 2_592_000
LONGEST_NAME = 255
ORPHAN_SECONDS = 86400.0
"""Age of contents without a row, above which a crash must have left them."""
AT_A_TIME = 1000

_columns = files.c
FILE = (
    _columns.id,
    _columns.owner,
    _columns.filename,
    _columns.purpose,
    _columns.bytes,
    _columns.created,
    _columns.expires,
)


@dataclass(frozen=True)
class StoredFile:
    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created: int
    expires: int | None


class Files:
    """`owner=None` reaches the files of all owners."""

    def __init__(self, store: Store, blobs: Blobs, config: FilesConfig) -> None:
        self.store, self.blobs, self.config = store, blobs, config

    def add(self, file: StoredFile, blob: NewBlob) -> Pending[StoredFile]:
        """Stores a complete content. Blocks while the disk writes it: call it in a thread."""

        def work() -> StoredFile:
            blob.keep(self.blobs.kept(file.id))
            try:
                return self.store.write(lambda db: self._insert(db, file)).result()
            except sa.exc.IntegrityError:  # the content is that of the file that has the id
                raise
            except BaseException:
                self.blobs.remove(file.id)
                raise

        return self.store.background(work)

    def _insert(self, db: sa.Connection, file: StoredFile) -> StoredFile:
        self.check_quota(db, file.owner, file.bytes)
        insert_file(db, file)
        return file

    def check_quota(self, db: sa.Connection, owner: str, more: int) -> None:
        limit = self.config.owner_bytes
        if limit is not None and (used := used_bytes(db, owner)) + more > limit:
            raise Overloaded(
                f"Files of this key have {used:,} of {limit:,} bytes, and {more:,} more do not fit: delete files, or "
                "ask an admin to raise files.owner_bytes.",
                code="storage_quota_exceeded",
            )

    def left(self, owner: str) -> Pending[int]:
        """The most bytes that a further file of the owner may have."""

        def work(db: sa.Connection) -> int:
            self.check_quota(db, owner, 1)
            limit = self.config.owner_bytes
            free = self.config.file_bytes if limit is None else limit - used_bytes(db, owner)
            return min(self.config.file_bytes, free)

        return self.store.read(work)

    def get(self, id: str, owner: str | None) -> Pending[StoredFile]:
        return self.store.read(lambda db: file_of(db, id, owner))

    def page(
        self, owner: str | None, query: PageQuery, purpose: str | None = None
    ) -> Pending[ObjectPage[StoredFile]]:
        wanted = sa.select(*FILE).where(_alive())
        if owner is not None:
            wanted = wanted.where(_columns.owner == owner)
        if purpose is not None:
            wanted = wanted.where(_columns.purpose == purpose)

        def work(db: sa.Connection) -> ObjectPage[StoredFile]:
            rows, more = rows_of_page(db, wanted, _columns.number, _columns.id, query)
            return ObjectPage([StoredFile(*row) for row in rows], more)

        return self.store.read(work)

    def delete(self, id: str, owner: str | None) -> Pending[None]:
        def work() -> None:
            def remove(db: sa.Connection) -> None:
                file_of(db, id, owner)
                db.execute(sa.delete(files).where(_columns.id == id))

            self.store.write(remove).result()
            self.blobs.remove(id)

        return self.store.background(work)

    def sweep(self) -> Pending[int]:
        """Deletes expired files, and contents that a crash left without a row. The number of expired files."""

        def work() -> int:
            total = 0
            while ids := self.store.write(_delete_expired).result():
                for id in ids:
                    self.blobs.remove(id)
                total += len(ids)
            self._sweep_orphans()
            return total

        return self.store.background(work)

    def _sweep_orphans(self) -> None:
        for path in self.blobs.names("incoming", ORPHAN_SECONDS):
            path.unlink(missing_ok=True)
        kept = list(self.blobs.names("kept", ORPHAN_SECONDS))
        for at in range(0, len(kept), AT_A_TIME):
            some = kept[at : at + AT_A_TIME]
            known = self.store.read(partial(_known, names=[path.name for path in some])).result()
            for path in some:
                if path.name not in known:
                    path.unlink(missing_ok=True)


def new_file(
    owner: str, filename: str, purpose: str, size: int, seconds: int | None, config: FilesConfig
) -> StoredFile:
    """`seconds`: life of the file; None for the default of its purpose."""
    created = microseconds()
    if seconds is None and purpose == "batch":
        seconds = config.batch_file_seconds
    expires = None if seconds is None else created + seconds * MICROSECONDS
    return StoredFile(
        f"file-{secrets.token_hex(16)}", owner, plain_name(filename), purpose, size, created, expires
    )


def plain_name(name: str) -> str:
    """A name without folders and without characters that cannot be printed. It is shown, and never opened."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(letter for letter in last if letter.isprintable())
    return shown[:LONGEST_NAME] or "file"


def check_purpose(purpose: str) -> None:
    if purpose not in PURPOSES:
        raise InvalidRequest(f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r}.", param="purpose")


def check_life(anchor: object, seconds: object, param: str = "expires_after") -> int:
    if anchor != "created_at":
        raise InvalidRequest(f"{param}[anchor] is created_at.", param=f"{param}.anchor")
    if not isinstance(seconds, int) or not SHORTEST_LIFE <= seconds <= LONGEST_LIFE:
        raise InvalidRequest(
            f"{param}[seconds] is between {SHORTEST_LIFE} (an hour) and {LONGEST_LIFE} (30 days).",
            param=f"{param}.seconds",
        )
    return seconds


def insert_file(db: sa.Connection, file: StoredFile) -> None:
    db.execute(sa.insert(files), vars(file))


def file_of(db: sa.Connection, id: str, owner: str | None) -> StoredFile:
    """A file of another owner is as unknown as one that does not exist."""
    row = db.execute(sa.select(*FILE).where(_columns.id == id, _alive())).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(f"No such File object: {id[:100]}", param="id", code="file_not_found")
    return StoredFile(*row)


def used_bytes(db: sa.Connection, owner: str) -> int:
    """Bytes of the owner's files and of parts of unfinished uploads."""
    kept = sa.select(sa.func.coalesce(sa.func.sum(_columns.bytes), 0)).where(_columns.owner == owner)
    parts = (
        sa.select(sa.func.coalesce(sa.func.sum(upload_parts.c.bytes), 0))
        .join_from(upload_parts, uploads, uploads.c.id == upload_parts.c.upload)
        .where(uploads.c.owner == owner)
    )
    return int(db.execute(kept).scalar_one()) + int(db.execute(parts).scalar_one())


def _alive() -> sa.ColumnElement[bool]:
    return sa.or_(_columns.expires.is_(None), _columns.expires > microseconds())


def _delete_expired(db: sa.Connection) -> list[str]:
    expired = sa.select(_columns.id).where(_columns.expires <= microseconds()).limit(AT_A_TIME)
    ids = list(db.execute(expired.with_for_update(skip_locked=True)).scalars())
    if ids:
        db.execute(sa.delete(files).where(_columns.id.in_(ids)))
    return ids


def _known(db: sa.Connection, names: list[str]) -> set[str]:
    return set(db.execute(sa.select(_columns.id).where(_columns.id.in_(names))).scalars())
