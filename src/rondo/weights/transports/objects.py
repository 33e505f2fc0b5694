"""Weights through a folder or an object store, the last resort: every version is complete before its manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rondo.base.errors import NotFound, StorageError
from rondo.base.storage import remote
from rondo.base.storage.paths import path_of
from rondo.models.files.headers import SINGLE
from rondo.weights import manifest
from rondo.weights.checksum import bucket_checksum
from rondo.weights.manifest import Manifest, WeightBucket, layout_from
from rondo.weights.transports.landing import Landing
from rondo.weights.transports.segment import Held, WeightSegment, corrupted

READERS = 4
CONFIG = "config.json"


def put(folder: Path, url: str) -> None:
    """Copies a complete segment to `url`/VERSION. The manifest, which makes the version complete, is written last."""
    found = Manifest.read(folder)
    store, root = open_store(url)
    place = f"{root}/{found.version}"
    with _reported(url, "write the weights to", "cannot_write"):
        if "local" in store.protocol:  # a bucket that does not exist is an error
            store.makedirs(place, exist_ok=True)
        for name in (SINGLE, CONFIG, manifest.NAME):
            store.put_file(str(folder / name), f"{place}/{name}")


def versions_in(url: str) -> list[int]:
    """Complete versions in a store, in ascending order."""
    store, root = open_store(url)
    with _reported(url, "read", "link_lost"):
        found = store.glob(f"{root}/*/{manifest.NAME}")
    names = [name.split("/")[-2] for name in found]
    return sorted(int(name) for name in names if name.isdigit())


def fetch_objects(landing: Landing, url: str, version: int | None) -> Held:
    store, root = open_store(url)
    try:
        if version is None:
            version = max(versions_in(url))
        place = f"{root}/{version}"
        with _translated(url):
            found = Manifest.parse(store.cat_file(f"{place}/{manifest.NAME}").decode())
            config = json.loads(store.cat_file(f"{place}/{CONFIG}"))
            length = int.from_bytes(store.cat_file(f"{place}/{SINGLE}", start=0, end=8), "little")
            layout = layout_from(store.cat_file(f"{place}/{SINGLE}", start=0, end=8 + length))
    except (OSError, ValueError, NotFound) as error:
        raise NotFound(f"{url} has no complete version {version}: {error}", param="source") from error
    segment = landing.take(layout, config, found)
    try:
        with _reported(url, "read", "link_lost"), ThreadPoolExecutor(READERS) as pool:
            read = partial(_read, store, f"{place}/{SINGLE}", segment, found)
            moved = sum(pool.map(read, range(len(found.buckets))))
    except BaseException:
        landing.give(segment)
        raise
    return landing.held(segment, found.version, moved)


def _read(store: Any, name: str, segment: WeightSegment, found: Manifest, number: int) -> int:
    """Reads the span of a bucket; runs that are strided are cut out of it."""
    bucket = found.buckets[number]
    first, last = _span(bucket)
    data = np.frombuffer(store.cat_file(name, start=first, end=last), np.uint8)
    for run in bucket.runs:
        for i in range(run.count):
            start = run.offset + i * run.stride
            segment.data[start : start + run.length] = data[start - first : start - first + run.length]
    if bucket_checksum(segment.data, bucket.runs) != found.checksums[number]:
        raise corrupted(number, found.version, name)
    segment.complete(number, found.version, found.checksums[number])
    return last - first


def _span(bucket: WeightBucket) -> tuple[int, int]:
    ends = [run.offset + (run.count - 1) * run.stride + run.length for run in bucket.runs]
    return min((run.offset for run in bucket.runs), default=0), max(ends, default=0)


def open_store(url: str) -> tuple[Any, str]:
    """Without a cache of listings: other processes add versions."""
    place = url.removeprefix("store:")
    if not _is_remote(url):
        place = f"file://{path_of(place, 'source').absolute()}"
    store, root = remote.store_of(place)
    return store, root.rstrip("/")


def _is_remote(url: str) -> bool:
    return remote.is_remote(url.removeprefix("store:"))


def _translated(url: str) -> AbstractContextManager[None]:
    """The advice about credentials and buckets is not for folders."""
    return remote.translated(url) if _is_remote(url) else nullcontext()


@contextmanager
def _reported(url: str, doing: str, code: str) -> Iterator[None]:
    try:
        with _translated(url):
            yield
    except OSError as error:
        raise StorageError(f"cannot {doing} {url}: {error}", code=code) from error
