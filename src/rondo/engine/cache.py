"""The KV cache's memory: for each layer, keys and values of every block."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.engine.config import EngineConfig
from rondo.engine.window import Window
from rondo.ops import AttentionSpec, Pages
from rondo.ops.pages import LARGEST, SCALE, kept_as, row_bytes

DEFAULT_CPU_BYTES = 2 << 30
GPU_SHARE = 0.8
ROOM_FOR_PREFIXES = 2
"""How many times the blocks that a full batch may hold: the rest keeps prefixes of earlier requests."""

KV_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class LayerCache:
    """Keys of KV heads of D numbers, values of KV heads of Dv."""

    keys: Pages
    values: Pages


class KVCache:
    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.specs = specs
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.layers: list[LayerCache] = []
        self.allocate()

    def allocate(self) -> None:
        if not self.layers:
            shape = (self.num_blocks, self.block_size, self.dtype, self.device)
            self.layers = [_layer(spec, *shape) for spec in self.specs]

    def release(self) -> None:
        """Gives the memory back to the system, until `allocate`; what was in it is gone."""
        self.layers = []

    @property
    def tensors(self) -> list[Tensor]:
        """All the memory there is, for who moves whole blocks: the first axis of each is the block."""
        return [tensor for pages in self._pages for tensor in pages.tensors]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """(to, from) each, as if all were read before any is written."""
        pairs = torch.tensor(copies, dtype=torch.int64, device=self.device)
        to, source = pairs.unbind(1)
        for tensor in self.tensors:
            tensor.index_copy_(0, to, tensor.index_select(0, source))

    def clean(self, blocks: Sequence[int]) -> None:
        """Takes NaN and infinity out of blocks before others get them: where attention hides a place its weight is
        0, but 0 times NaN is NaN."""
        index = torch.tensor(blocks, dtype=torch.int64, device=self.device)
        for pages in self._pages:
            pages.clean(index)

    @property
    def _pages(self) -> Iterator[Pages]:
        return (pages for layer in self.layers for pages in (layer.keys, layer.values))


def kv_dtype(config: EngineConfig, model: torch.dtype) -> torch.dtype:
    return model if config.kv_dtype == "auto" else KV_DTYPES[config.kv_dtype]


def block_bytes(specs: Sequence[AttentionSpec], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers, scales included."""
    rows = (
        spec.num_kv_heads * row_bytes(dim, dtype) for spec in specs for dim in (spec.head_dim, spec.value_dim)
    )
    return block_size * sum(rows)


def choose_num_blocks(
    config: EngineConfig,
    per_block: int,
    max_model_len: int,
    device: torch.device,
    window: Window | None = None,
) -> int:
    """Twice what `max_num_seqs` requests of full length hold at once, within the bytes set or left on the device."""
    longest, a_step = (-(-tokens // config.block_size) for tokens in (max_model_len, config.max_step_tokens))
    batch = longest * config.max_num_seqs
    if window is not None:
        longest = min(longest, window.most_blocks)
        batch = min(batch, longest * config.max_num_seqs + a_step)
    if config.num_blocks is not None:
        count = config.num_blocks
    else:
        limit = config.kv_cache_bytes or _default_bytes(device)
        count = min(batch * ROOM_FOR_PREFIXES, limit // per_block)
    if count < longest:
        raise ConfigError(
            f"the KV cache has room for {count * config.block_size} tokens, but one request may have {max_model_len}"
            + (f" and sees {window.tokens} of them" if window else "")
            + ". Lower max_model_len, or raise kv_cache_bytes or num_blocks.",
            param="max_model_len",
        )
    return count


def _default_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * GPU_SHARE)
    return DEFAULT_CPU_BYTES


def _layer(
    spec: AttentionSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> LayerCache:
    rows = (num_blocks, block_size, spec.num_kv_heads)
    keys, values = (
        Pages(
            dtype,
            _zeros((*rows, dim), kept_as(dtype), device),
            _zeros(rows, SCALE, device) if dtype in LARGEST else None,
        )
        for dim in (spec.head_dim, spec.value_dim)
    )
    return LayerCache(keys, values)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, since a masked place must not hold a NaN. On the CPU they are the system's own pages: memory that no
    request ever reaches is never paid for, and what is released goes back, however the C library keeps its own."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
