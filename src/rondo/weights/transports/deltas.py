"""Sparse deltas for slow links: the changed elements of each bucket of a version, by index and value.

A delta applies to one base version, which its checksum names. A bucket that is smaller as a whole has no delta. The
receiver copies the bucket of the base, writes the changed elements, and compares the checksum of the result with the
one of the version: the result is the same bit for bit.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rondo.base.errors import RondoError
from rondo.models.files.headers import SINGLE
from rondo.weights.checksum import Bytes
from rondo.weights.manifest import Manifest, SegmentLayout, WeightBucket, layout_in
from rondo.weights.plan.boxes import ByteRun

WORDS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
HEAD, INDEX_BYTES = 8, 4
"""Bytes of the head, which are the size of an element, and of each index."""


@dataclass(frozen=True)
class WeightDelta:
    base: str
    """Checksum of the version to which it applies."""
    buckets: tuple[bytes | None, ...]
    """Encoded changes of each bucket; None for a bucket that is sent whole."""


def delta_between(base: Path, target: Path) -> WeightDelta | None:
    """Changes from one complete segment to another; None if their tensors differ in names, types or shapes."""
    layout = layout_in(target)
    if layout_in(base).header != layout.header:
        return None
    old, new = (np.memmap(folder / SINGLE, np.uint8, "r") for folder in (base, target))
    places = [place for place in layout.tensors.values() if place.stop > place.start]
    sizes = sorted((place.start, place.itemsize) for place in places)
    starts = [start for start, _ in sizes]
    found: list[bytes | None] = []
    for bucket in Manifest.read(target).buckets:
        run = single_run(bucket)
        if run is None:
            found.append(None)
            continue
        _, size = sizes[bisect_right(starts, run.offset) - 1]
        found.append(encode(_part(old, run), _part(new, run), size))
    return WeightDelta(Manifest.read(base).total, tuple(found))


def encode(old: Bytes, new: Bytes, size: int) -> bytes | None:
    """Changed elements of `size` bytes; None if the whole is smaller."""
    before, after = old.view(WORDS[size]), new.view(WORDS[size])
    changed = np.flatnonzero(before != after)
    if HEAD + len(changed) * (INDEX_BYTES + size) >= len(new):
        return None
    return size.to_bytes(HEAD, "little") + changed.astype(np.uint32).tobytes() + after[changed].tobytes()


def apply(delta: bytes, data: Bytes) -> None:
    """Writes the changed elements into the bytes of the base's bucket. Raises `ValueError` if they do not fit."""
    size = int.from_bytes(delta[:HEAD], "little")
    count, rest = divmod(len(delta) - HEAD, INDEX_BYTES + size)
    if size not in WORDS or rest or len(data) % size:
        raise ValueError(f"a delta of {len(delta)} bytes is malformed")
    values: npt.NDArray[np.unsignedinteger] = data.view(WORDS[size])
    index = np.frombuffer(delta, np.uint32, count, HEAD)
    if count and int(index.max()) >= len(values):
        raise ValueError("a delta has an index beyond its bucket")
    values[index] = np.frombuffer(delta, WORDS[size], count, HEAD + count * INDEX_BYTES)


def fits(base: Path, layout: SegmentLayout, wanted: str) -> Bytes | None:
    """Bytes of the base version of a delta, if the folder has exactly that version."""
    try:
        same = layout_in(base).header == layout.header and Manifest.read(base).total == wanted
    except (OSError, ValueError, RondoError):
        return None  # a model folder that is no segment
    return np.memmap(base / SINGLE, np.uint8, "r") if same else None


def single_run(bucket: WeightBucket) -> ByteRun | None:
    """The bytes of a contiguous bucket."""
    return bucket.runs[0] if len(bucket.runs) == 1 and bucket.runs[0].count == 1 else None


def _part(data: Bytes, run: ByteRun) -> Bytes:
    return np.asarray(data[run.offset : run.offset + run.length])
