"""Shards in WebDataset's layout: a tar whose samples are documents, each one array of tokens in NumPy's format.

Headers have a fixed size, so a document's offset follows from the lengths of the previous ones.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rondo.base.storage.files import storage_error

BLOCK = 512
ARRAY_HEADER = 128
END = bytes(2 * BLOCK)
"""Two empty blocks mark the end of a tar."""


class ShardWriter:
    def __init__(self, path: Path, stem: str, dtype: str) -> None:
        self.path = path
        self._file = path.open("wb")
        self._stem, self._dtype = stem, np.dtype(dtype)
        self._sum = hashlib.sha256()
        self.lengths: list[int] = []
        self.bytes = 0

    def add(self, ids: Sequence[int]) -> None:
        array = np.asarray(ids, self._dtype)
        data = _array_header(len(array), self._dtype) + array.tobytes()
        header = tarfile.TarInfo(f"{self._stem}-{len(self.lengths):08d}.npy")
        header.size, header.mode = len(data), 0o644
        self._write(header.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK))
        self.lengths.append(len(array))

    def close(self) -> str:
        """Finishes the file and returns its SHA-256."""
        self._write(END)
        try:
            self._file.close()
        except OSError as error:
            raise storage_error(self.path, error) from error
        return self._sum.hexdigest()

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:  # the exception lacks the file's name
            raise storage_error(self.path, error) from error
        self._sum.update(data)
        self.bytes += len(data)


def offsets(lengths: NDArray[Any], dtype: str) -> NDArray[np.int64]:
    """Byte offset of each document's tokens in its shard."""
    sizes = ARRAY_HEADER + lengths.astype(np.int64) * np.dtype(dtype).itemsize
    steps = BLOCK + -(-sizes // BLOCK) * BLOCK
    return np.cumsum(steps) - steps + BLOCK + ARRAY_HEADER


def _array_header(count: int, dtype: np.dtype[Any]) -> bytes:
    out = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(out, facts)
    header = out.getvalue()
    assert len(header) == ARRAY_HEADER, "NumPy pads this header to one size"
    return header
