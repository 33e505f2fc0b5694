"""Reading and writing safetensors files: memory-mapped where nothing changes, streamed where something does.

The library's own reader is not used because a mapping must be private and writable (training updates weights in place)
and a streamed read must go straight into the parameter's memory.
"""

import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo.base.errors import ModelError
from rondo.base.files import parse_json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
STAGING_BYTES = 32 << 20


@dataclass(frozen=True)
class Stored:
    """One tensor in a file."""

    file: "File"
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def mapped(self) -> Tensor:
        """The tensor on the file's pages: private to this process, so writing to it leaves the file as it is.

        Files of other writers may have it where its dtype cannot be read in place; then it is read.
        """
        if not self.aligned:
            return self._rows(0, self.stop - self.start).view(self.shape)
        return self.file.mapping[self.start : self.stop].view(self.dtype).view(self.shape)

    @property
    def aligned(self) -> bool:
        return self.start % self.dtype.itemsize == 0

    def read_into(self, target: Tensor) -> None:
        """Stream into `target`, which has the same shape and may have another dtype, layout or device."""
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


class File:
    """An open safetensors file, its header checked against its size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
            with path.open("rb") as stream:
                prefix = stream.read(8)
                length = int.from_bytes(prefix, "little")
                if len(prefix) < 8 or length > self.size - 8:
                    raise ModelError(
                        f"{path} is truncated or not a safetensors file; fetch or export it again"
                    )
                header = dict(json.loads(stream.read(length)).items())
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, AttributeError, RecursionError) as error:
            raise ModelError(f"{path} has a broken header; fetch or export it again") from error
        self.data_start = 8 + length
        self.tensors = {
            name: self._stored(name, entry) for name, entry in header.items() if name != "__metadata__"
        }
        ordered = sorted(self.tensors.values(), key=lambda tensor: tensor.start)
        for first, second in itertools.pairwise(ordered):
            if second.start < first.stop:
                raise ModelError(f"{path}: {first.name} and {second.name} overlap; fetch or export it again")

    def _stored(self, name: str, entry: Mapping[str, Any]) -> Stored:
        try:
            dtype = DTYPES.get(entry["dtype"])
            shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
            if not all(isinstance(number, int) and 0 <= number < 1 << 63 for number in (*shape, start, stop)):
                raise ValueError
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self.path} has a broken header at {name!r}; fetch or export it again"
            ) from error
        if dtype is None:
            raise ModelError(f"{self.path}: {name} has dtype {entry['dtype']}, which cannot be loaded")
        if self.data_start + stop > self.size:
            raise ModelError(
                f"{self.path} is truncated: {name} ends at byte {self.data_start + stop} of {self.size}; "
                "fetch or export it again"
            )
        if stop - start != math.prod(shape) * dtype.itemsize:
            raise ModelError(
                f"{self.path}: {name} has {stop - start} bytes, which is not its shape {list(shape)}"
            )
        return Stored(self, name, dtype, shape, self.data_start + start, self.data_start + stop)

    @cached_property
    def mapping(self) -> Tensor:
        storage = torch.UntypedStorage.from_file(str(self.path), shared=False, nbytes=self.size)
        return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[arg-type]

    def read_exactly(self, target: Tensor, offset: int) -> None:
        """Fill a contiguous uint8 tensor from this offset on."""
        view = memoryview(target.numpy())  # type: ignore[arg-type]
        with self.path.open("rb", buffering=0) as stream:
            while view:
                count = os.preadv(stream.fileno(), [view], offset)
                if count == 0:
                    raise ModelError(f"{self.path} ended early, at byte {offset}; fetch or export it again")
                view, offset = view[count:], offset + count


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def open_checkpoint(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder, one file or several with an index."""
    index = folder / INDEX
    if index.exists():
        return _open_sharded(folder, index)
    if (folder / SINGLE).exists():
        return File(folder / SINGLE).tensors
    if list(folder.glob("*.bin")):
        raise ModelError(
            f"{folder} holds PyTorch pickles (*.bin), which are not loaded; convert it to safetensors"
        )
    raise ModelError(f"{folder} has no {SINGLE} and no {INDEX}; is it a model folder?")


def _open_sharded(folder: Path, index: Path) -> dict[str, Stored]:
    try:
        weight_map: dict[str, str] = dict(parse_json(index.read_bytes(), index)["weight_map"].items())
        if not all(isinstance(shard, str) for shard in weight_map.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is broken: no readable 'weight_map'; fetch it again") from error
    absent = sorted({shard for shard in weight_map.values() if not (folder / shard).exists()})
    if absent:
        raise ModelError(f"{folder} lacks {', '.join(absent)}, which {INDEX} names; fetch it again")
    files = {shard: File(folder / shard) for shard in sorted(set(weight_map.values()))}
    lost = [name for name, shard in weight_map.items() if name not in files[shard].tensors]
    if lost:
        raise ModelError(f"{index} names tensors its files do not hold: {some(lost)}")
    return {name: stored for file in files.values() for name, stored in file.tensors.items()}


def differences(expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> str:
    """What does not match, listed; empty where names, shapes and kinds of number all do."""
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
            f"{name} is {stored[name].dtype}" for name in both if not stored[name].dtype.is_floating_point
        ],
    }
    return "; ".join(f"{len(names)} {label}: {some(names)}" for label, names in problems.items() if names)


def some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
