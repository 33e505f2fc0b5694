"""Downloads into the Hugging Face cache: resumed after an interruption, also by another process, and visible only when
complete and verified.

A content is written to `blobs/<digest>.incomplete`, continued from there by the next attempt, compared with its digest
and renamed. Links under `snapshots/<commit>/` are made last. `huggingface_hub` supplies the requests; its own download
starts a file again after the process ended, and compares sizes only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from rondo.base.errors import StorageError, Unavailable
from rondo.base.lock import lock, open_lock
from rondo.base.storage.files import storage_error
from rondo.base.telemetry.log import get_logger
from rondo.base.units import human_bytes
from rondo.hub.cache import hub_cache, repo_folder, snapshot_folder
from rondo.hub.listing import HubFile, Listing, endpoint, store_listing, translated

log = get_logger(__name__)

Report = Callable[[str, int, int], None]
"""(stage, bytes done, total bytes)."""

WORKERS = 4
FRUITLESS_ATTEMPTS = 5
"""Consecutive requests without a new byte before a download fails."""
READ_SECONDS = 10.0
"""Timeout to connect, and to wait for the next bytes."""
PARTIAL_CONTENT = 206
REPORT_SECONDS = 0.1
LOGGED_BYTES = 1 << 20
"""Size from which a download without a progress report is logged."""
CHUNK = 4 << 20
LOCK_SECONDS = 1.0
SHA256_DIGITS = 64


def fetch(
    listing: Listing, files: list[HubFile], report: Report | None = None, *, complete: bool = True
) -> Path:
    """Downloads the missing files of `files`, and returns the folder of the commit. `complete`: nothing further of this
    commit follows, so the revision refers to it from now on, in place of an older commit."""
    folder = snapshot_folder(listing.name, listing.commit)
    missing = [file for file in files if not (folder / file.path).is_file()]
    if missing:
        try:
            _Download(listing, report).run(missing)
            for file in sorted(missing, key=lambda each: each.path == "config.json"):
                _link(listing, file, folder)
        except OSError as error:
            raise storage_error(hub_cache(), error, sum(file.size for file in missing)) from error
    if complete:
        store_listing(listing)
    return folder


def _link(listing: Listing, file: HubFile, folder: Path) -> None:
    place, blob = folder / file.path, repo_folder(listing.name) / "blobs" / file.digest
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}")
    os.symlink(os.path.relpath(blob, place.parent), temporary)
    os.replace(temporary, place)


class _Download:
    """One download of several files, and its progress."""

    def __init__(self, listing: Listing, report: Report | None) -> None:
        self._listing, self._report = listing, report
        self._blobs = repo_folder(listing.name) / "blobs"
        self._locks = hub_cache() / ".locks" / repo_folder(listing.name).name
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._done = self._total = 0
        self._told = 0.0

    def run(self, files: list[HubFile]) -> None:
        unique = {file.digest: file for file in files if not (self._blobs / file.digest).is_file()}
        self._total = sum(file.size for file in unique.values())
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._locks.mkdir(parents=True, exist_ok=True)
        self._check_space(list(unique.values()))
        if self._report is None and self._total >= LOGGED_BYTES:
            log.info("downloading %s (%s)", self._listing.name, human_bytes(self._total))
        with ThreadPoolExecutor(WORKERS, "download") as pool:
            tasks = [pool.submit(self._file, file) for file in sorted(unique.values(), key=_by_size)]
            try:
                done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                self._cancelled.set()  # on an interrupt too
                pool.shutdown(cancel_futures=True)
        for task in done:
            task.result()

    def _check_space(self, files: list[HubFile]) -> None:
        needed = sum(file.size - _size(self._partial(file)) for file in files)
        if shutil.disk_usage(self._blobs).free < needed:
            raise storage_error(self._blobs.parent, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)

    def _file(self, file: HubFile) -> None:
        blob, partial = self._blobs / file.digest, self._partial(file)
        # `huggingface_hub` locks the same file
        handle = open_lock(self._locks / f"{file.digest}.lock")
        try:
            while not lock(handle, LOCK_SECONDS, required=False):
                self.check()
                self._tell("waiting for another process", 0, 0)
            if blob.is_file():
                self.count(file.size)
                return
            resumed = _size(partial) > 0
            self._transfer(file, partial)
            if resumed and not _matches(partial, file):  # the earlier part may be the damaged one
                partial.unlink()
                self.count(-file.size)
                self._transfer(file, partial)
            self._verify(file, partial)
            os.replace(partial, blob)
        finally:
            os.close(handle)

    def _partial(self, file: HubFile) -> Path:
        return self._blobs / f"{file.digest}.incomplete"

    def _verify(self, file: HubFile, partial: Path) -> None:
        if _matches(partial, file):
            return
        partial.unlink()
        raise StorageError(
            f"{file.path} of {self._listing.name} was damaged during the download: its checksum differs from the "
            f"Hub's. Run `{self._listing.name.pull}` again; if that fails too, check the proxy or the mirror in "
            "HF_ENDPOINT.",
            code="damaged_download",
        )

    def _transfer(self, file: HubFile, partial: Path) -> None:
        """Completes the partial file, with repeated requests as long as they bring new bytes."""
        if _size(partial) > file.size:
            partial.unlink()
        self.count(start := _size(partial))
        fruitless = 0
        while _size(partial) < file.size or not partial.exists():
            self.check()
            failure: Unavailable | None = None
            try:
                self._request(file, partial)
            except Unavailable as error:
                failure = error
            reached = _size(partial)
            fruitless, start = (0 if reached > start else fruitless + 1), reached
            if fruitless == FRUITLESS_ATTEMPTS:
                raise failure or Unavailable(
                    f"{endpoint()} sends {file.path} of {self._listing.name} incompletely. Run "
                    f"`{self._listing.name.pull}` again later: the download continues.",
                    code="incomplete",
                )
            if failure is not None:
                time.sleep(2**fruitless)

    def _request(self, file: HubFile, partial: Path) -> None:
        """One request for the rest of the file."""
        from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        name, start = self._listing.name, _size(partial)
        url = hf_hub_url(
            name.repo,
            file.path,
            repo_type=name.kind,
            revision=self._listing.commit,
            endpoint=endpoint(),
        )
        headers = {**build_hf_headers(library_name="rondo"), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with (
            translated(name),
            get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=READ_SECONDS
            ) as response,
        ):
            hf_raise_for_status(response)
            with partial.open("ab") as out:
                if start and response.status_code != PARTIAL_CONTENT:
                    out.truncate(0)
                    self.count(-start)
                for chunk in response.iter_bytes():
                    out.write(chunk)
                    self.count(len(chunk))
        if _size(partial) > file.size:
            self.count(file.size - _size(partial))

    def check(self) -> None:
        if self._cancelled.is_set():
            raise _Cancelled

    def count(self, size: int) -> None:
        self.check()
        with self._lock:
            self._done += size
            now = time.monotonic()
            if now - self._told >= REPORT_SECONDS or self._done >= self._total:
                self._told = now
                self._tell("downloading", min(self._done, self._total), self._total)

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self._report is not None:
            self._report(stage, done, total)


class _Cancelled(Exception):
    """Ends the threads of a download that failed or was interrupted."""


def _by_size(file: HubFile) -> int:
    return file.size


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _matches(path: Path, file: HubFile) -> bool:
    found = (
        hashlib.sha256() if len(file.digest) == SHA256_DIGITS else hashlib.sha1(b"blob %d\0" % _size(path))
    )
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            found.update(chunk)
    return found.hexdigest() == file.digest
