"""Reading safetensors files: memory-mapped if no conversion is needed, else streamed.

The library's own reader is not used, because a mapping must be private and writable (training updates weights in place)
and a streamed read must write directly into the parameter's memory.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from rondo.base.errors import ModelError
from rondo.base.storage.gguf import is_gguf
from rondo.models.files import headers
from rondo.models.files.headers import Header, some

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, known) for name, (known, _) in headers.DTYPES.items()}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of plain (unquantized) weights."""
STAGING_BYTES = 32 << 20


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file."""

    file: "MappedFile"
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def mapped(self) -> Tensor:
        """The tensor as a private mapping of the file's pages; writing to it leaves the file unchanged.

        In files of other writers the offset may not be aligned to the dtype; then the tensor is read instead.
        """
        if not self.aligned:
            return self._rows(0, self.stop - self.start).view(self.shape)
        return self.file.mapping[self.start : self.stop].view(self.dtype).view(self.shape)

    @property
    def aligned(self) -> bool:
        return self.start % self.dtype.itemsize == 0

    def read_into(self, target: Tensor) -> None:
        """Stream into `target`, which has the same shape, and possibly another dtype, layout or device."""
        if target.device.type == "cpu" and target.dtype == self.dtype and target.is_contiguous():
            self.file.read_exactly(_bytes_of(target), self.start)
            return
        if target.dim() == 0 or target.numel() == 0:
            target.copy_(self._rows(0, 1).view(self.shape))
            return
        row_bytes = (self.stop - self.start) // self.shape[0]
        step = max(1, STAGING_BYTES // max(row_bytes, 1))
        for first in range(0, self.shape[0], step):
            rows = self._rows(first * row_bytes, min(step, self.shape[0] - first) * row_bytes)
            target[first : first + step].copy_(rows.view(-1, *self.shape[1:]))

    def _rows(self, offset: int, size: int) -> Tensor:
        size = min(size, self.stop - self.start - offset) or (self.stop - self.start)
        buffer = torch.empty(size, dtype=torch.uint8)
        self.file.read_exactly(buffer, self.start + offset)
        return buffer.view(self.dtype)


class MappedFile:
    """A file of tensors, mapped on first use."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size

    @cached_property
    def mapping(self) -> Tensor:
        storage = torch.UntypedStorage.from_file(str(self.path), shared=False, nbytes=self.size)
        return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[arg-type]

    def read_exactly(self, target: Tensor, offset: int) -> None:
        """Fill a contiguous uint8 tensor from this offset."""
        view = memoryview(target.numpy())  # type: ignore[arg-type]
        with self.path.open("rb", buffering=0) as stream:
            while view:
                count = os.preadv(stream.fileno(), [view], offset)
                if count == 0:
                    raise ModelError(f"{self.path} ended early, at byte {offset}; fetch or export it again")
                view, offset = view[count:], offset + count


class SafetensorsFile(MappedFile):
    """An open safetensors file, with its header validated against its size."""

    def __init__(self, source: Path | Header) -> None:
        header = source if isinstance(source, Header) else headers.read_header(source)
        super().__init__(header.path, header.size)
        self.tensors = {
            name: StoredTensor(self, name, getattr(torch, entry.dtype), entry.shape, entry.start, entry.stop)
            for name, entry in header.tensors.items()
        }


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def open_checkpoint(folder: Path, keep_quantized: bool = False) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint folder, from one file or several with an index, or of a GGUF file. With
    `keep_quantized`, weights of a GGUF file that can be used as they are stay blocks."""
    if is_gguf(folder):
        from rondo.models.files.gguf.tensors import open_gguf

        return open_gguf(folder, keep_quantized)
    files = [SafetensorsFile(header) for header in headers.read_headers(folder)]
    return {name: stored for file in files for name, stored in file.tensors.items()}


def differences(expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor]) -> str:
    """Differences in names, shapes and kinds of dtype, as text; empty if there are none."""
    both = [name for name in expected if name in stored]
    problems = {
        "missing": [name for name in expected if name not in stored],
        "unexpected": [name for name in stored if name not in expected],
        "of the wrong shape": [
            f"{name} is {list(stored[name].shape)}, should be {list(expected[name])}"
            for name in both
            if stored[name].shape != tuple(expected[name])
        ],
        "of a dtype that is not floating-point": [
            f"{name} is {stored[name].dtype}" for name in both if stored[name].dtype not in FLOATS
        ],
    }
    return "; ".join(f"{len(names)} {label}: {some(names)}" for label, names in problems.items() if names)
