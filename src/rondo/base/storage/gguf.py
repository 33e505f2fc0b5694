"""The container of a GGUF file: its metadata and the places of its tensors, read without torch or NumPy.

The `gguf` package has a reader too, but it holds each string of a vocabulary as several arrays, and its errors do not
name the damaged field.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

from rondo.base.errors import ModelError

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MOST_DIMENSIONS = 4
DEEPEST = 4
"""Limit of nested arrays, which a garbage file could nest endlessly."""

SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Value type in the file -> its struct format."""
FLOAT32, STRING, ARRAY = 6, 8, 9


@dataclass(frozen=True)
class BlockType:
    """Storage of a tensor type: numbers in a block, and bytes of it."""

    name: str
    numbers: int
    size: int


READABLE = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
"""Tensor types that are read: number in the file -> storage."""
OTHER_TYPES = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


@dataclass(frozen=True)
class GgufEntry:
    """One tensor of a file. `shape` has the slowest dimension first; `start` and `stop` are offsets in the file."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Strings:
    """An array of strings, decoded on first use: a vocabulary takes longer than all other metadata together."""

    data: mmap.mmap | bytes
    start: int
    count: int

    @cached_property
    def values(self) -> list[str]:
        data, position, read = self.data, self.start, struct.Struct("<Q").unpack_from
        found = []
        for _ in range(self.count):
            start = position + 8
            position = start + read(data, position)[0]
            found.append(data[start:position].decode("utf-8", "replace"))
        return found


@dataclass(frozen=True)
class Gguf:
    """A file's metadata by key, and its tensors by name, validated against the file's size."""

    path: Path
    data: mmap.mmap | bytes
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufEntry]

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value; a value of another kind raises an error with the key."""
        value = self.metadata.get(key)
        if value is None:
            return default
        wrong_bool = isinstance(value, bool) and kind is not bool
        if wrong_bool or not isinstance(value, kind):
            raise self.error(key, f"is {str(value)[:60]!r}, which has the wrong type")
        return value

    def need(self, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self.get(key, kind)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(
            f"{self.path}: metadata field {key!r} {problem}. Download the file again, or convert the model again.",
            param=key,
        )


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX and path.is_file()


def gguf_in(path: Path) -> Path | None:
    """The GGUF file of a model: the path itself, or the only one in a folder that has no config.json."""
    if is_gguf(path):
        return path
    try:
        if not path.is_dir() or (path / "config.json").exists():
            return None
        found = sorted(file for file in path.iterdir() if is_gguf(file) and not file.name.startswith("."))
    except OSError as error:
        raise ModelError(f"cannot read {error.filename or path}: {error.strerror}") from error
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:8])
        raise ModelError(f"{path} has {len(found)} GGUF files: give the path of one of them ({names}).")
    return found[0] if found else None


def read_gguf(path: Path) -> Gguf:
    try:
        state = path.stat()
        return _read(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise ModelError(
            f"Cannot read {path}: {error.strerror}. Check the path and its permissions."
        ) from error


@lru_cache(maxsize=2)
def _read(path: Path, size: int, changed: int) -> Gguf:
    """Cached, because config, tokenizer and weights are read one after another."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: it does not start with 'GGUF'. Download it again.")
        reader = _Reader(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    version = reader.number("<I", "version")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} has GGUF version {version}; versions 2 and 3 are supported. Convert the model again with a "
            "current llama.cpp."
        )
    tensors, pairs = reader.number("<Q", "tensor count"), reader.number("<Q", "metadata count")
    metadata = dict(reader.pair(index) for index in range(pairs))
    _check_split(path, metadata)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
        raise reader.broken("general.alignment", f"is {alignment!r}, not a multiple of 8")
    entries = [reader.entry(index) for index in range(tensors)]
    start = -(-reader.position // alignment) * alignment
    placed = {each.name: _placed(path, size, start, each) for each in entries}
    return Gguf(path, reader.data, metadata, placed)


def _check_split(path: Path, metadata: Mapping[str, Any]) -> None:
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(
            f"{path} is one of {parts} parts of a model, which are not read one by one. Join them: llama-gguf-split "
            f"--merge {path} MODEL.gguf",
            param="split.count",
        )


def _placed(path: Path, size: int, start: int, entry: GgufEntry) -> GgufEntry:
    stop = start + entry.stop
    if stop > size:
        raise ModelError(
            f"{path} is truncated: tensor {entry.name!r} ends at byte {stop} of {size}. Download the file again."
        )
    return GgufEntry(entry.name, entry.type, entry.shape, start + entry.start, stop)


class _Reader:
    """Reads values one after another. Every length is checked against the file before it is used."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 4

    def number(self, form: str, field: str) -> Any:
        start = self._skip(struct.calcsize(form), field)
        return struct.unpack_from(form, self.data, start)[0]

    def text(self, field: str) -> str:
        start = self._skip(length := self.number("<Q", field), field)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError:
            raise self.broken(field, "is not UTF-8") from None

    def pair(self, index: int) -> tuple[str, Any]:
        key = self.text(f"metadata key {index}")
        return key, self._value(self.number("<I", key), key, 0)

    def entry(self, index: int) -> GgufEntry:
        """`start` and `stop` are relative to the start of the data, which is not known yet."""
        name = self.text(f"name of tensor {index}")
        count = self.number("<I", name)
        if not 0 < count <= MOST_DIMENSIONS:
            raise self.broken(name, f"has {count} dimensions, not 1 to {MOST_DIMENSIONS}")
        shape = tuple(self.number("<Q", name) for _ in range(count))[::-1]
        number, offset = self.number("<I", name), self.number("<Q", name)
        kind = self._type(number, name)
        if shape[-1] % kind.numbers or 0 in shape:
            raise self.broken(name, f"has shape {list(shape)}, which {kind.name} cannot store")
        return GgufEntry(name, kind, shape, offset, offset + prod(shape) // kind.numbers * kind.size)

    def _type(self, number: int, name: str) -> BlockType:
        if number not in READABLE:
            known = OTHER_TYPES.get(number)
            if known is None:
                raise self.broken(name, f"has tensor type {number}, which GGUF does not define")
            names = ", ".join(each.name for each in READABLE.values())
            raise ModelError(
                f"{self.path}: tensor {name!r} has type {known}, which is not supported; supported: {names}. Use a "
                "Q4_K_M, Q8_0 or BF16 file of the model, or convert this one: llama-quantize --allow-requantize "
                f"{self.path.name} NEW.gguf Q8_0",
                param=name,
            )
        return READABLE[number]

    def _value(self, kind: int, field: str, depth: int) -> Any:
        if kind in SCALARS:
            return (
                shortest(self.number("<f", field)) if kind == FLOAT32 else self.number(SCALARS[kind], field)
            )
        if kind == STRING:
            return self.text(field)
        if kind != ARRAY or depth == DEEPEST:
            raise self.broken(field, f"has value type {kind}, which GGUF does not define")
        return self._array(field, depth)

    def _array(self, field: str, depth: int) -> Any:
        kind, count = self.number("<I", field), self.number("<Q", field)
        if kind in SCALARS:
            form = SCALARS[kind]
            start = self._skip(count * struct.calcsize(form), field)
            return list(struct.unpack_from(f"<{count}{form[1]}", self.data, start))
        if kind == STRING:
            start = self.position
            self._skip_strings(count, field)
            return Strings(self.data, start, count)
        self._check(count, field)
        return [self._value(kind, field, depth + 1) for _ in range(count)]

    def _skip_strings(self, count: int, field: str) -> None:
        self._check(count * 8, field)
        data, position, read = self.data, self.position, struct.Struct("<Q").unpack_from
        last = len(data) - 8
        for _ in range(count):
            if position > last:
                raise self._truncated(field)
            position += 8 + read(data, position)[0]
        self.position = position
        self._check(0, field)

    def _skip(self, count: int, field: str) -> int:
        self._check(count, field)
        start = self.position
        self.position += count
        return start

    def _check(self, count: int, field: str) -> None:
        if count > len(self.data) - self.position:
            raise self._truncated(field)

    def _truncated(self, field: str) -> ModelError:
        return ModelError(
            f"{self.path} is truncated or damaged at {field!r}, byte {self.position} of {len(self.data)}. Download the "
            "file again.",
            param=field,
        )

    def broken(self, field: str, problem: str) -> ModelError:
        return ModelError(
            f"{self.path} is damaged: {field!r} {problem}. Download the file again.", param=field
        )


def shortest(value: float) -> float:
    """The shortest decimal that is this fp32 number: 1e-6 is stored as 9.99999997e-07, and configs say 1e-6."""
    candidates = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((each for each in candidates if _as_float32(each) == value), value)


def _as_float32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value


Encode = Callable[[Any], bytes]


def metadata_bytes(key: str, value: Any) -> bytes:
    """A pair of the metadata. Whole numbers are uint32, and int32 in lists, as llama.cpp expects them."""
    return _text_bytes(key) + _value_bytes(value)


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, list):
        whole = isinstance(value[0], int) and not isinstance(value[0], bool)
        kind, encode = (5, struct.Struct("<i").pack) if whole else _encoding(value[0])
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(map(encode, value))
    kind, encode = _encoding(value)
    return struct.pack("<I", kind) + encode(value)


def _encoding(value: Any) -> tuple[int, Encode]:
    match value:
        case bool():
            return 7, struct.Struct("<?").pack
        case int():
            return 4, struct.Struct("<I").pack
        case float():
            return FLOAT32, struct.Struct("<f").pack
        case _:
            return STRING, _text_bytes


def _text_bytes(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry_bytes(name: str, shape: tuple[int, ...], type_name: str, offset: int) -> bytes:
    """The description of a tensor; `offset` is relative to the start of the data."""
    number = next(number for number, each in READABLE.items() if each.name == type_name)
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return _text_bytes(name) + dimensions + struct.pack("<IQ", number, offset)
