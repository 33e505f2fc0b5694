"""Writing safetensors files one tensor at a time, so that memory never holds a second copy of the checkpoint.

The file is bitwise equal to the output of the `safetensors` library: tensors by dtype, widest first, then by name.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from rondo.models.files.headers import INDEX, SINGLE
from rondo.models.files.mapping import Outgoing
from rondo.models.files.safetensors import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
ORDER = [
    *(torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int16),
    *(torch.float8_e4m3fn, torch.int8, torch.uint8),
]
PIECE_BYTES = 32 << 20


def write(
    folder: Path, tensors: Sequence[Outgoing], max_shard_bytes: int, progress: Callable[[int], None]
) -> None:
    """Writes one file, or, above `max_shard_bytes`, shards with an index, with the file names of transformers."""
    shards = _split(tensors, max_shard_bytes)
    count = len(shards)
    names = (
        [SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    )
    for name, shard in zip(names, shards, strict=True):
        with open(folder / name, "xb") as file:
            _write_file(file, shard, progress)
    if count > 1:
        weight_map = {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        }
        total = sum(tensor.nbytes for tensor in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _split(tensors: Sequence[Outgoing], max_shard_bytes: int) -> list[list[Outgoing]]:
    shards: list[list[Outgoing]] = [[]]
    filled = 0
    for tensor in tensors:
        if filled and filled + tensor.nbytes > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    return shards


def _write_file(file: BinaryIO, tensors: Sequence[Outgoing], progress: Callable[[int], None]) -> None:
    ordered = sorted(tensors, key=lambda tensor: (ORDER.index(tensor.dtype), tensor.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        stop = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, stop],
        }
        offset = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in ordered:
        flat = tensor.make().detach().cpu().contiguous().view(-1).view(torch.uint8)
        for start in range(0, len(flat), PIECE_BYTES):
            progress(file.write(flat[start : start + PIECE_BYTES].numpy().data))
