"""The weights of a GGUF file, as the tensors of a Hugging Face checkpoint: mapped if they are plain, else dequantized
piece by piece into their place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rondo.base.storage.gguf import Gguf, read_gguf
from rondo.models.files.gguf.architectures import Architecture, architecture_of
from rondo.models.files.gguf.blocks import PLAIN, decoded
from rondo.models.files.gguf.config import config_of
from rondo.models.files.gguf.header import Placed, kept_names, placed
from rondo.models.files.safetensors import MappedFile, StoredTensor

PIECE_BYTES = 1 << 20
"""Blocks that are dequantized at once: their fp32 numbers, eight times as many bytes, reuse the same memory."""


@dataclass(frozen=True)
class GgufTensor(StoredTensor):
    """`dtype` is the one in which a model computes with the tensor."""

    type_name: str
    heads: int | None = None
    """Number of heads of q or k whose rows are in the order of interleaved rotary pairs."""
    offset: float = 0.0
    """Number that the file has added to the tensor."""
    raw: bool = False
    """Whether the blocks are returned as they are, as uint8."""

    @property
    def aligned(self) -> bool:
        direct = self.type_name in PLAIN and self.heads is None and not self.offset
        return direct and self.start % self.dtype.itemsize == 0

    def mapped(self) -> Tensor:
        return self._finished(self._blocks())

    def read_into(self, target: Tensor) -> None:
        blocks = self._blocks()
        if self.heads is not None or target.dim() == 0:
            target.copy_(self._finished(blocks))
            return
        step = max(1, PIECE_BYTES // max(1, blocks[0].nbytes))
        for first in range(0, blocks.shape[0], step):
            target[first : first + step].copy_(self._finished(blocks[first : first + step]))

    def _blocks(self) -> Tensor:
        data = self.file.mapping[self.start : self.stop].view(*self.shape[:-1], -1)
        misaligned = self.type_name in PLAIN and self.start % PLAIN[self.type_name].itemsize
        return data.clone() if misaligned else data

    def _finished(self, blocks: Tensor) -> Tensor:
        numbers = blocks if self.raw else decoded(blocks, self.type_name)
        if self.heads is not None:
            numbers = (
                numbers.view(self.heads, -1, 2, *numbers.shape[1:]).transpose(1, 2).reshape(numbers.shape)
            )
        return numbers - self.offset if self.offset else numbers


def open_gguf(path: Path, keep_quantized: bool = False) -> dict[str, StoredTensor]:
    """All tensors by Hugging Face name. With `keep_quantized`, weights of types that Rondo multiplies with directly are
    blocks of uint8."""
    gguf = read_gguf(path)
    file = MappedFile(path, len(gguf.data))
    kept = {f"{module}.weight" for modules in kept_names(gguf).values() for module in modules}
    return _opened(gguf, file, kept if keep_quantized else ())


def _opened(gguf: Gguf, file: MappedFile, kept: Collection[str]) -> dict[str, StoredTensor]:
    architecture, config = architecture_of(gguf), config_of(gguf)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    return {
        name: _tensor(file, name, place, architecture, heads, name in kept)
        for name, place in placed(gguf).items()
    }


def _tensor(
    file: MappedFile, name: str, place: Placed, architecture: Architecture, heads: dict[str, int], raw: bool
) -> GgufTensor:
    type_name = place.entry.type.name
    dtype, shape = PLAIN.get(type_name, torch.bfloat16), place.shape
    if raw:
        kind = place.entry.type
        dtype, shape = torch.uint8, (*shape[:-1], shape[-1] // kind.numbers * kind.size)
    return GgufTensor(
        file,
        name,
        dtype,
        shape,
        place.start,
        place.stop,
        type_name,
        heads.get(name.split(".")[-2]) if architecture.swaps_pairs else None,
        1.0 if architecture.adds_one and name.endswith("norm.weight") else 0.0,
        raw,
    )
