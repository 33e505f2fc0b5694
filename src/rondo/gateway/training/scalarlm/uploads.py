"""Uploads of an archive in pieces with hashes. An interrupted upload continues: an equal beginning returns the
numbers of the pieces on the disk. A folder of each upload has `manifest.json` and its pieces by their numbers."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import Conflict, NotFound, RondoError
from rondo.base.storage.files import read_json, storage_error, write_json
from rondo.base.storage.hashing import sha256_json
from rondo.control.objects.blobs import Blobs, NewBlob
from rondo.gateway.training.scalarlm.fields import Unprocessable
from rondo.web.errors import BodyTooLarge

ID = re.compile(r"[0-9a-f]{32}")
SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST_CHUNK = 100 << 20
MOST_CHUNKS = 100_000
KEPT_SECONDS = 24 * 3600.0
COPIED = 4 << 20


@dataclass(frozen=True)
class UploadPlan:
    """The beginning of an upload."""

    total_size: int
    total_hash: str
    chunk_size: int
    num_chunks: int
    params: Mapping[str, Any]

    def check(self, limit: int) -> None:
        if self.total_size > limit:
            raise BodyTooLarge(
                f"total_size is {self.total_size:,}, and {limit:,} bytes are allowed: an admin can raise "
                "files.file_bytes or files.owner_bytes.",
                param="total_size",
                code="file_too_large",
            )
        if self.chunk_size > LARGEST_CHUNK:
            raise Unprocessable(f"chunk_size is at most {LARGEST_CHUNK}.", param="chunk_size")
        expected = -(-self.total_size // self.chunk_size)
        if self.num_chunks != expected or self.num_chunks > MOST_CHUNKS:
            raise Unprocessable(
                f"num_chunks is {self.num_chunks}, and {self.total_size:,} bytes in pieces of {self.chunk_size:,} are "
                f"{expected:,} (at most {MOST_CHUNKS:,}).",
                param="num_chunks",
            )
        if not SHA256.fullmatch(self.total_hash):
            raise Unprocessable("total_hash is a SHA-256 of 64 hexadecimal digits.", param="total_hash")


class ArchiveUploads:
    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self.folder, self.blobs = folder, blobs

    def begin(self, owner: str, plan: UploadPlan, limit: int) -> tuple[str, list[int]]:
        """Id of the upload, and the pieces that have arrived. `limit`: bytes of all uploads of the owner."""
        facts = {**vars(plan), "params": dict(plan.params), "owner": owner}
        id = sha256_json(facts)[:32]
        folder = self.folder / id
        if not (folder / "manifest.json").exists():
            self.sweep()
            plan.check(limit - self._begun(owner))
            write_json(folder / "manifest.json", facts)
        return id, sorted(self._pieces(folder))

    def plan(self, id: str, owner: str) -> UploadPlan:
        try:
            if not ID.fullmatch(id):
                raise NotFound(id)
            facts = read_json(self.folder / id / "manifest.json")
            if facts.pop("owner") != owner:
                raise NotFound(id)
        except NotFound:
            raise NotFound(
                f"There is no upload {id[:64]!r}: begin it with /v1/megatron/upload/init.",
                param="upload_id",
                code="upload_not_found",
            ) from None
        return UploadPlan(**facts)

    def add(self, id: str, owner: str, index: int, sha256: str, data: bytes) -> None:
        plan = self.plan(id, owner)
        if not 0 <= index < plan.num_chunks:
            raise Unprocessable(
                f"The piece {index} is not one of the {plan.num_chunks} of this upload.",
                param="X-Chunk-Index",
            )
        size = min(plan.chunk_size, plan.total_size - index * plan.chunk_size)
        if len(data) != size:
            raise Unprocessable(
                f"The piece {index} has {len(data):,} bytes instead of {size:,}.", param="body"
            )
        if (found := hashlib.sha256(data).hexdigest()) != sha256.lower():
            raise Unprocessable(
                f"The piece {index} has the SHA-256 {found}, not {sha256[:64]}: send it again.",
                param="X-Chunk-Hash",
                code="checksum_mismatch",
            )
        path = self.folder / id / f"{index:06d}"
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        try:
            new.write_bytes(data)
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise storage_error(path, error, len(data)) from error

    def joined(self, id: str, owner: str) -> tuple[UploadPlan, NewBlob]:
        """The archive, after its size and hash were checked. The caller drops it."""
        plan, folder = self.plan(id, owner), self.folder / id
        there = self._pieces(folder)
        if missing := [index for index in range(plan.num_chunks) if index not in there]:
            raise Conflict(f"Missing chunks: {missing[:100]}", param="upload_id", code="missing_chunks")
        blob, digest = self.blobs.new(), hashlib.sha256()
        try:
            for index in range(plan.num_chunks):
                with (folder / f"{index:06d}").open("rb") as file:
                    while data := file.read(COPIED):
                        digest.update(data)
                        blob.write(data)
            if digest.hexdigest() != plan.total_hash:
                raise Unprocessable(
                    f"The archive has the SHA-256 {digest.hexdigest()}, not {plan.total_hash}: upload it again.",
                    param="total_hash",
                    code="checksum_mismatch",
                )
        except BaseException as error:
            blob.drop()
            if isinstance(error, Unprocessable):
                self.remove(id)
            raise
        return plan, blob

    def remove(self, id: str) -> None:
        if ID.fullmatch(id):
            shutil.rmtree(self.folder / id, ignore_errors=True)

    def sweep(self) -> None:
        """Removes uploads without a change for a day."""
        for folder in self.folder.glob("*"):
            with suppress(OSError):
                newest = max((path.stat().st_mtime for path in (folder, *folder.iterdir())), default=0.0)
                if newest < time.time() - KEPT_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)

    def _begun(self, owner: str) -> int:
        """Bytes of the owner's uploads."""
        total = 0
        for file in self.folder.glob("*/manifest.json"):
            with suppress(RondoError):
                facts = read_json(file)
                total += int(facts["total_size"]) if facts["owner"] == owner else 0
        return total

    def _pieces(self, folder: Path) -> set[int]:
        with suppress(OSError):
            return {int(path.name) for path in folder.iterdir() if path.name.isdigit()}
        return set()


def params_of(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unprocessable(f"params is not JSON: {error}.", param="params") from None
