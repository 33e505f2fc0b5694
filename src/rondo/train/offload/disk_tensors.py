"""Tensors in memory-mapped files: they stay on disk, and are read and written back on request."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from rondo.base.storage.files import storage_error

_POPULATE_READ, _DONTNEED, _WILLNEED = 22, 4, 3  # constants of Linux's madvise
_SYNC = 4  # constant of msync
_libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


class DiskTensorPool:
    """Pool of tensors in one unnamed file: no data remains after the process ends, however it ends, and none is reused.
    Disk space is allocated before a tensor is placed, so that a full disk is an error there only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, prefix="offload-")  # noqa: SIM115  lives as long as this
        except OSError as error:
            raise storage_error(folder, error) from error
        self._end = 0
        self._maps: dict[int, mmap.mmap] = {}

    def place(self, x: Tensor) -> Tensor:
        """Copies a tensor into the file's memory. A rank's part of a small tensor may be empty."""
        if not x.numel():
            return x
        size = -(-max(x.nbytes, 1) // PAGE) * PAGE
        try:
            os.posix_fallocate(self._file.fileno(), self._end, size)
            memory = mmap.mmap(self._file.fileno(), size, offset=self._end)
        except OSError as error:
            raise storage_error(self._folder, error, size) from error
        self._end += size
        placed = torch.frombuffer(memory, dtype=x.dtype, count=x.numel()).view(x.shape)
        self._maps[placed.data_ptr()] = memory
        placed.copy_(x)
        return placed

    def holds(self, x: Tensor) -> bool:
        return x.device.type == "cpu" and x.data_ptr() in self._maps

    @property
    def nbytes(self) -> int:
        return self._end

    def bring(self, tensors: Iterable[Tensor]) -> None:
        """Reads tensors from disk, unless they are in memory."""
        for x in self._own(tensors):
            if _libc.madvise(*_span(x), _POPULATE_READ):  # Linux before 5.14
                _libc.madvise(*_span(x), _WILLNEED)

    def let_go(self, tensors: Iterable[Tensor]) -> None:
        """Writes changes to disk; afterwards the kernel may reclaim the memory."""
        for x in self._own(tensors):
            _libc.msync(*_span(x), _SYNC)
            _libc.madvise(*_span(x), _DONTNEED)

    def _own(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        return [x for x in tensors if self.holds(x)]


def _span(x: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.nbytes)
