"""Layout of one version of a model's weights in a safetensors file, and its buckets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import ModelError
from rondo.base.storage.hashing import sha256_json
from rondo.models.files.headers import DTYPES, SINGLE
from rondo.weights.plan.boxes import ByteRun

NAME = "manifest.json"
ALIGNED = 64
NAMES = {known: name for name, (known, _) in DTYPES.items()}
"""Dtype in torch's notation -> in a header."""
_ORDER = [*("int64", "float64", "float32", "int32", "bfloat16", "float16", "int16")]


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of the file; `start` and `stop` are offsets from the start of the file. `dtype` as torch names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def itemsize(self) -> int:
        return DTYPES[NAMES[self.dtype]][1]


@dataclass(frozen=True)
class SegmentLayout:
    """A safetensors file without its data. Every process computes the same layout from the same tensors."""

    header: bytes
    size: int
    tensors: Mapping[str, TensorPlace]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.size - len(self.header)


@dataclass(frozen=True)
class WeightBucket:
    """Copied bytes, transferred and verified together. `writer` is the rank that writes them."""

    writer: int
    runs: tuple[ByteRun, ...]

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)


@dataclass(frozen=True)
class Manifest:
    model: str
    version: int
    buckets: tuple[WeightBucket, ...]
    checksums: tuple[int, ...] = ()
    """Checksum of each bucket; empty while the version is being written."""

    @property
    def total(self) -> str:
        """Checksum of the whole version."""
        return sha256_json([self.model, self.version, list(self.checksums)])

    def dump(self) -> str:
        # `asdict` of the whole manifest copies every run and takes 20 ms for 300 buckets.
        buckets = [{"writer": bucket.writer, "runs": list(map(_run, bucket.runs))} for bucket in self.buckets]
        found = {
            "model": self.model,
            "version": self.version,
            "buckets": buckets,
            "checksums": self.checksums,
        }
        return json.dumps(found | {"algorithm": "xxh3_64"})

    @classmethod
    def parse(cls, text: str) -> Manifest:
        found = json.loads(text)
        buckets = tuple(
            WeightBucket(each["writer"], tuple(ByteRun(**run) for run in each["runs"]))
            for each in found["buckets"]
        )
        return cls(found["model"], found["version"], buckets, tuple(found["checksums"]))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / NAME
        try:
            return cls.parse(path.read_text())
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}.", param="source") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path} is no manifest of weights.", param="source") from error


def _run(run: ByteRun) -> dict[str, int]:
    return {"offset": run.offset, "length": run.length, "count": run.count, "stride": run.stride}


def layout_of(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> SegmentLayout:
    """Layout of (name, dtype, shape), with the order of the safetensors library."""
    ordered = sorted(tensors, key=lambda each: (_rank(each[1]), each[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in ordered:
        stop = offset + math.prod(shape) * DTYPES[NAMES[dtype]][1]
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % ALIGNED)
    data = len(text).to_bytes(8, "little") + text
    places = {
        name: TensorPlace(name, dtype, shape, *(len(data) + each for each in header[name]["data_offsets"]))
        for name, dtype, shape in ordered
    }
    return SegmentLayout(data, len(data) + offset, places)


def layout_from(header: bytes) -> SegmentLayout:
    """Layout from the bytes before the data of a safetensors file."""
    table = json.loads(header[8:])
    table.pop("__metadata__", None)
    places = {}
    for name, each in table.items():
        start, stop = each["data_offsets"]
        dtype = DTYPES[each["dtype"]][0]
        places[name] = TensorPlace(name, dtype, tuple(each["shape"]), len(header) + start, len(header) + stop)
    size = max((place.stop for place in places.values()), default=len(header))
    return SegmentLayout(header, size, places)


def layout_in(folder: Path) -> SegmentLayout:
    """Layout of the safetensors file in a folder."""
    with (folder / SINGLE).open("rb") as stream:
        prefix = stream.read(8)
        return layout_from(prefix + stream.read(int.from_bytes(prefix, "little")))


def _rank(dtype: str) -> int:
    return _ORDER.index(dtype) if dtype in _ORDER else len(_ORDER)
