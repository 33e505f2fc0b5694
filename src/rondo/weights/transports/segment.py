"""Segments in shared memory: a model folder of a fixed layout that one process writes and others map.

A learner has two segments and writes them in turn. A reader holds a shared lock on the segment of the version that it
uses, and the writer waits for the lock before it writes the next version there. Buckets are published one by one, so
that readers verify a bucket while later ones are written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rondo.base.errors import Conflict, ModelError, Unavailable
from rondo.base.lock import hold, lock, remove_unheld
from rondo.base.storage.files import storage_error
from rondo.models.files.headers import SINGLE
from rondo.weights import manifest
from rondo.weights.checksum import Bytes, bucket_checksum, copied
from rondo.weights.manifest import Manifest, SegmentLayout, WeightBucket
from rondo.weights.plan.boxes import Box, slices

PROGRESS = "progress"
"""A file of two 64-bit words per bucket: the version in it, and its checksum."""
POLL_SECONDS = 0.0005
LONGEST_POLL_SECONDS = 0.02
ABORTED = 2**64 - 1
"""Version in the place of a bucket whose writer has failed."""


class WeightSegment:
    """A segment as its writer has it. `folder` exists; memory for all data is allocated at once."""

    def __init__(
        self, folder: Path, layout: SegmentLayout, config: Mapping[str, Any], *, create: bool
    ) -> None:
        self.folder, self.layout = folder, layout
        if create:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n")
            _allocate(folder / SINGLE, layout)
        self.data = _mapped(folder / SINGLE, layout.size, writable=True)
        self._words: npt.NDArray[np.uint64] | None = None

    def begin(self, version: Manifest, seconds: float) -> bool:
        """Announces the version that is written next; False if a reader still uses the segment after `seconds`."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            if not lock(handle, seconds):
                return False
            path = self.folder / PROGRESS
            path.write_bytes(bytes(16 * len(version.buckets)))
            (self.folder / manifest.NAME).write_text(version.dump())
        finally:
            os.close(handle)
        self.attach(len(version.buckets))
        return True

    def attach(self, buckets: int) -> None:
        """Maps the progress of a version that `begin` has announced, in this process or another."""
        path = self.folder / PROGRESS
        self._words = _mapped(path, 16 * buckets, writable=True).view(np.uint64) if buckets else None

    @torch.no_grad()
    def write(
        self, name: str, source: Tensor, number: int, box: Box, bucket: WeightBucket, version: int
    ) -> None:
        """Copies a region of a tensor, which is one bucket, in the layout's dtype, and publishes the bucket."""
        (run, *rest) = bucket.runs or (None,)
        place = self.layout.tensors[name]
        dtype: torch.dtype = getattr(torch, place.dtype)
        contiguous = source.is_contiguous() and source.device.type == "cpu" and source.dtype == dtype
        if run is not None and run.count == 1 and not rest and contiguous:
            self.complete(number, version, copied(self.data, run, source.data_ptr()))
            return
        if run is not None:
            flat = torch.from_numpy(self.data)[place.start : place.stop]
            flat.view(dtype).view(place.shape)[slices(box)].copy_(source)
        self.complete(number, version, bucket_checksum(self.data, bucket.runs))

    def complete(self, number: int, version: int, checksum: int) -> None:
        """Publishes a bucket whose bytes are written."""
        assert self._words is not None
        self._words[2 * number + 1] = checksum
        self._words[2 * number] = version

    def abort(self) -> None:
        """Wakes the readers of a version that will not be completed."""
        if self._words is not None:
            self._words[0::2] = ABORTED


@dataclass
class Held:
    """A verified model folder; its bytes do not change until `release`."""

    folder: Path
    version: int
    nbytes: int = 0
    """Bytes moved to this host or process."""
    _release: Callable[[], None] = lambda: None

    def release(self) -> None:
        done, self._release = self._release, lambda: None
        done()


def read_segment(folder: Path, version: int, verify: bool, seconds: float) -> Held:
    """Waits until all buckets of a version are in the segment, and verifies each."""
    until = time.monotonic() + seconds
    handle = _shared(folder, until)
    try:
        found = Manifest.read(folder)
        if found.version != version:
            raise Conflict(f"{folder} holds version {found.version} of the weights, not {version}.")
        data = _mapped(folder / SINGLE, (folder / SINGLE).stat().st_size)
        words = _mapped(folder / PROGRESS, 16 * len(found.buckets)).view(np.uint64)
        for number, bucket in enumerate(found.buckets):
            _await_bucket(words, number, version, folder, until)
            if verify and bucket_checksum(data, bucket.runs) != int(words[2 * number + 1]):
                raise corrupted(number, version, folder)
    except BaseException:
        os.close(handle)
        raise
    return Held(folder, version, 0, lambda: _let_go(handle, folder))


def finished(folder: Path, announced: Manifest) -> Manifest:
    """The manifest of a complete version, with the checksum of each bucket."""
    words = np.fromfile(folder / PROGRESS, np.uint64)
    return replace(announced, checksums=tuple(int(each) for each in words[1::2]))


def corrupted(number: int, version: int, place: object) -> ModelError:
    return ModelError(
        f"bucket {number} of version {version} in {place} has another checksum than its writer published. The weights "
        "in use are unchanged: push the version again.",
        param="source",
        code="corrupted",
    )


def writer_lives(folder: Path) -> bool:
    """Whether the process that made the segments still runs."""
    with contextlib.suppress(OSError):
        handle = os.open(folder.parent, os.O_RDONLY)
        try:
            return not lock(handle)
        finally:
            os.close(handle)
    return False


def claim(parent: Path) -> int:
    """Marks a folder of segments as this process's, and removes the unused ones of dead processes beside it."""
    parent.mkdir(parents=True, exist_ok=True)
    handle = hold(parent)
    for other in parent.parent.glob("rondo-weights-*"):
        if other != parent:
            discard(other)
    return handle


def discard(parent: Path) -> None:
    """Removes the segments of a dead process that no reader uses."""
    with contextlib.suppress(OSError):
        handle = os.open(parent, os.O_RDONLY)
        try:
            if lock(handle):
                for segment in [each for each in parent.iterdir() if each.is_dir()]:
                    remove_unheld(segment)
                if not any(parent.iterdir()):
                    parent.rmdir()
        finally:
            os.close(handle)


def _let_go(handle: int, folder: Path) -> None:
    os.close(handle)
    if folder.parent.name.startswith("rondo-weights-"):
        discard(folder.parent)


def _await_bucket(
    words: npt.NDArray[np.uint64], number: int, version: int, folder: Path, until: float
) -> None:
    pause, checked = POLL_SECONDS, time.monotonic()
    while int(words[2 * number]) != version:
        now = time.monotonic()
        dead = now - checked > 0.1 and not writer_lives(folder)
        if int(words[2 * number]) == ABORTED or dead:
            raise Unavailable(
                f"the writer of version {version} in {folder} ended before bucket {number} was complete. The weights "
                "in use are unchanged.",
                code="writer_ended",
            )
        if now > until:
            raise Unavailable(
                f"bucket {number} of version {version} was not written to {folder} in time.", code="timeout"
            )
        checked = now if now - checked > 0.1 else checked
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_POLL_SECONDS)


def _shared(folder: Path, until: float) -> int:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ModelError(f"cannot read {folder}: {error.strerror}.", param="source") from error
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(handle)
                raise Conflict(f"{folder} is being written.") from None
            time.sleep(LONGEST_POLL_SECONDS)


def _allocate(path: Path, layout: SegmentLayout) -> None:
    """Without allocation, a full memory file system would kill the writer with SIGBUS."""
    try:
        with path.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, layout.size)
            stream.write(layout.header)
    except OSError as error:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise storage_error(path, error, layout.size) from error


def _mapped(path: Path, size: int, *, writable: bool = False) -> Bytes:
    if not size:
        return np.empty(0, np.uint8)
    with path.open("r+b" if writable else "rb") as stream:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(stream.fileno(), size, access=access), np.uint8)
