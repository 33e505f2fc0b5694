"""Metadata of a model folder: its config, and the headers of its safetensors files. Imports no torch."""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import ModelError
from rondo.base.storage.files import parse_json
from rondo.base.storage.gguf import is_gguf, read_gguf

DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "BOOL": ("bool", 1),
}
"""Dtype name in a header -> torch's name and bytes per number."""
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class TensorHeader:
    """One tensor of a file; `start` and `stop` are offsets from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """Header of a safetensors file, validated against the file's size."""

    path: Path
    size: int
    tensors: Mapping[str, TensorHeader]


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder, or the one that a GGUF file's metadata amount to."""
    if is_gguf(folder):
        from rondo.models.files.gguf.config import read_config as read_gguf_config

        return read_gguf_config(folder)
    path = folder / "config.json"
    try:
        if not path.exists():
            raise ModelError(f"{folder} has no config.json; is it a model folder?")
        config = parse_json(path.read_bytes(), path)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a JSON object")
    return config


def read_headers(folder: Path) -> list[Header]:
    """Headers of all safetensors files of a checkpoint folder: one file, or several with an index. A GGUF file's header
    has its tensors under their Hugging Face names."""
    if is_gguf(folder):
        return [_read_gguf_header(folder)]
    index = folder / INDEX
    if index.exists():
        return _read_sharded(folder, index)
    if (folder / SINGLE).exists():
        return [read_header(folder / SINGLE)]
    if list(folder.glob("*.bin")):
        raise ModelError(
            f"{folder} holds PyTorch pickles (*.bin), which are not loaded; convert it to safetensors"
        )
    raise ModelError(f"{folder} has no {SINGLE} and no {INDEX}; is it a model folder?")


def _read_gguf_header(path: Path) -> Header:
    from rondo.models.files.gguf.header import placed

    gguf = read_gguf(path)
    tensors = {
        name: TensorHeader(each.entry.type.name, each.shape, each.start, each.stop)
        for name, each in placed(gguf).items()
    }
    return Header(path, len(gguf.data), tensors)


def read_header(path: Path) -> Header:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise ModelError(f"{path} is truncated or not a safetensors file; fetch or export it again")
            table = dict(json.loads(stream.read(length)).items())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} has a broken header; fetch or export it again") from error
    table.pop("__metadata__", None)
    tensors = {name: _entry(path, size, 8 + length, name, entry) for name, entry in table.items()}
    ordered = sorted(tensors.items(), key=lambda item: item[1].start)
    for (first, one), (second, other) in itertools.pairwise(ordered):
        if other.start < one.stop:
            raise ModelError(f"{path}: {first} and {second} overlap; fetch or export it again")
    return Header(path, size, tensors)


def _entry(path: Path, size: int, data_start: int, name: str, entry: Mapping[str, Any]) -> TensorHeader:
    try:
        known = DTYPES.get(entry["dtype"])
        shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
        if not all(isinstance(number, int) and 0 <= number < 1 << 63 for number in (*shape, start, stop)):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} has a broken header at {name!r}; fetch or export it again") from error
    if known is None:
        raise ModelError(f"{path}: {name} has dtype {entry['dtype']}, which cannot be loaded")
    if data_start + stop > size:
        raise ModelError(
            f"{path} is truncated: {name} ends at byte {data_start + stop} of {size}; fetch or export it again"
        )
    if stop - start != math.prod(shape) * known[1]:
        raise ModelError(f"{path}: {name} has {stop - start} bytes, which is not its shape {list(shape)}")
    return TensorHeader(known[0], shape, data_start + start, data_start + stop)


def _read_sharded(folder: Path, index: Path) -> list[Header]:
    try:
        weight_map: dict[str, str] = dict(parse_json(index.read_bytes(), index)["weight_map"].items())
        if not all(isinstance(shard, str) for shard in weight_map.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is broken: no readable 'weight_map'; fetch it again") from error
    absent = sorted({shard for shard in weight_map.values() if not (folder / shard).exists()})
    if absent:
        raise ModelError(f"{folder} lacks {', '.join(absent)}, which {INDEX} names; fetch it again")
    headers = {shard: read_header(folder / shard) for shard in sorted(set(weight_map.values()))}
    lost = [name for name, shard in weight_map.items() if name not in headers[shard].tensors]
    if lost:
        raise ModelError(f"{index} names tensors its files do not hold: {some(lost)}")
    return list(headers.values())


def some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
