"""Prepared shards as a data set: any document by its number, without reading the others."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import InvalidRequest, StorageError
from rondo.base.storage.hashing import sha256_file
from rondo.base.storage.paths import path_of
from rondo.base.storage.remote import is_remote, store_of, translated
from rondo.data.batching.datasets import Learned
from rondo.data.batching.sampler import DocumentSpan
from rondo.data.storage.cache import Cache
from rondo.data.storage.index import INDEX, LENGTHS, DataShard, Index, parse_index
from rondo.data.storage.places import SourceFile, folder_of, open_file
from rondo.data.storage.tar import offsets

MAPPED_SHARDS = 4096
READ = "Prepare it anew, or copy it again."


def is_prepared(source: str) -> bool:
    return _index_of(source) is not None


def read_index(source: str) -> Index:
    data = _index_of(source)
    if data is None:
        raise InvalidRequest(
            f"{source} has no {INDEX}: its preparation has not ended, or it is no data", param="data"
        )
    return parse_index(data, f"{source}/{INDEX}")


def _index_of(source: str) -> bytes | None:
    if not is_remote(source) and not path_of(source, "data").is_dir():
        return None
    return folder_of(source).read(INDEX)


class Shards:
    """Dataset of prepared shards. With a cache, remote shards are downloaded whole, once. Without one, each batch
    requests its byte ranges and stores nothing, which is better for data larger than the cache."""

    def __init__(self, source: str, index: Index, cache: Cache | None = None) -> None:
        self.index = index
        self._source = source.rstrip("/") if is_remote(source) else str(folder_of(source).name)
        self._cache = cache
        self.lengths = _lengths(source, index)
        self._ends = np.cumsum([shard.documents for shard in index.shards])
        self._dtype = np.dtype(index.dtype).newbyteorder("<")
        self._offsets = lru_cache(maxsize=None)(self._find_offsets)
        self._mapped = lru_cache(maxsize=MAPPED_SHARDS)(self._map)
        if not is_remote(source):
            for shard in index.shards:
                _check_size(Path(self._source).expanduser() / shard.name, shard)

    def valid(self, piece: DocumentSpan) -> int:
        return piece.size

    def read(self, pieces: Sequence[DocumentSpan]) -> list[Learned]:
        places = [self._place(piece) for piece in pieces]
        if is_remote(self._source) and self._cache is None:
            data = self._ranges(places)
        else:
            data = [self._mapped(shard)[begin:end].data for shard, begin, end in places]
        tokens = [np.frombuffer(each, self._dtype) for each in data]
        return [(ids, np.ones(len(ids), np.float32)) for ids in tokens]

    def document(self, number: int) -> NDArray[Any]:
        ((tokens, _),) = self.read([DocumentSpan(0, number, 0, int(self.lengths[number]))])
        return tokens

    def _place(self, piece: DocumentSpan) -> tuple[int, int, int]:
        """Returns (shard, first byte, last byte)."""
        shard = int(np.searchsorted(self._ends, piece.document, side="right"))
        first = int(self._offsets(shard)[piece.document - self._first(shard)])
        size = self._dtype.itemsize
        return shard, first + piece.begin * size, first + piece.end * size

    def _first(self, shard: int) -> int:
        return int(self._ends[shard]) - self.index.shards[shard].documents

    def _find_offsets(self, shard: int) -> NDArray[np.int64]:
        return offsets(self.lengths[self._first(shard) : int(self._ends[shard])], self.index.dtype)

    def _map(self, shard: int) -> NDArray[np.uint8]:
        told = self.index.shards[shard]
        if not is_remote(self._source):
            path = Path(self._source).expanduser() / told.name
        else:
            assert self._cache is not None
            path = self._cache.fetch(SourceFile(self._url(shard), told.size, told.sha256), told.sha256)
        try:
            return np.memmap(path, np.uint8, "r")
        except FileNotFoundError:  # another process evicted it
            return self._map(shard) if self._cache else _gone(path)

    def _ranges(self, places: Sequence[tuple[int, int, int]]) -> list[memoryview]:
        store, folder = store_of(self._source)
        with translated(self._source):
            found = store.cat_ranges(
                [f"{folder}/{self.index.shards[shard].name}" for shard, _, _ in places],
                [begin for _, begin, _ in places],
                [end for _, _, end in places],
                on_error="raise",
            )
        for data, (shard, begin, end) in zip(found, places, strict=True):
            if len(data) != end - begin:
                raise StorageError(f"{self._url(shard)} is shorter than its index requires. {READ}")
        return [memoryview(data) for data in found]

    def _url(self, shard: int) -> str:
        return f"{self._source}/{self.index.shards[shard].name}"


def check_shards(source: str, index: Index) -> None:
    """Reads everything, and raises at the first difference from the index."""
    _lengths(source, index)
    for shard in index.shards:
        name = f"{source.rstrip('/')}/{shard.name}"
        if not is_remote(source):
            _check_size(Path(name).expanduser(), shard)
            found = sha256_file(Path(name).expanduser())
        else:
            with open_file(name) as file, translated(name):
                sums = hashlib.sha256()
                while chunk := file.read(4 << 20):
                    sums.update(chunk)
            found = sums.hexdigest()
        if found != shard.sha256:
            raise StorageError(f"{name} does not match its index: it is damaged. {READ}")


def _lengths(source: str, index: Index) -> NDArray[Any]:
    data = folder_of(source).read(LENGTHS)
    if data is None or hashlib.sha256(data).hexdigest() != index.lengths_sha256:
        raise StorageError(f"{source}/{LENGTHS} is missing or damaged. {READ}")
    lengths: NDArray[Any] = np.load(io.BytesIO(data))
    return lengths


def _check_size(path: Path, shard: DataShard) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise StorageError(f"{path} is missing. {READ}") from None
    if size != shard.size:
        raise StorageError(
            f"{path} has {size} bytes instead of the {shard.size} in its index: it is damaged. {READ}"
        )


def _gone(path: Path) -> NDArray[np.uint8]:
    raise StorageError(f"{path} is missing. {READ}")
