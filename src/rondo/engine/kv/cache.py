"""The KV cache's memory: for each layer, keys and values of every block of its group."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

import torch
from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.engine.config import EngineConfig
from rondo.engine.kv.blocks import Table
from rondo.engine.kv.groups import Moves
from rondo.engine.kv.window import Window
from rondo.ops import AttentionSpec, Pages
from rondo.ops.attention.pages import LARGEST, SCALE, kept_as, row_bytes

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
    """`num_blocks` are those of each group, `group_of` is each layer's: the first group's where nothing is said."""

    def __init__(
        self,
        specs: Sequence[AttentionSpec],
        num_blocks: Sequence[int],
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        group_of: Sequence[int] | None = None,
    ) -> None:
        self.specs = specs
        self.num_blocks = num_blocks
        self.group_of = [0] * len(specs) if group_of is None else group_of
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.layers: list[LayerCache] = []
        self.allocate()

    def allocate(self) -> None:
        if not self.layers:
            self.layers = [
                _layer(spec, self.num_blocks[group], self.block_size, self.dtype, self.device)
                for spec, group in zip(self.specs, self.group_of, strict=True)
            ]

    def release(self) -> None:
        """Gives the memory back to the system, until `allocate`; what was in it is gone."""
        self.layers = []

    @property
    def tensors(self) -> list[Tensor]:
        """All the memory there is."""
        return [tensor for group in range(len(self.num_blocks)) for tensor in self.tensors_of(group)]

    def tensors_of(self, group: int) -> list[Tensor]:
        """A group's memory, for who moves whole blocks: the first axis of each is the block."""
        return [tensor for pages in self._pages(group) for tensor in pages.tensors]

    def copy(self, copies: Moves) -> None:
        """As if all were read before any is written."""
        for group, pairs in enumerate(copies):
            if not pairs:
                continue
            to, source = torch.tensor(pairs, dtype=torch.int64, device=self.device).unbind(1)
            for tensor in self.tensors_of(group):
                tensor.index_copy_(0, to, tensor.index_select(0, source))

    def clean(self, tables: Sequence[Table]) -> None:
        """Takes NaN and infinity out of blocks before others get them: where attention hides a place its weight is
        0, but 0 times NaN is NaN."""
        for group, table in enumerate(tables):
            index = torch.tensor(table.blocks[table.passed :], dtype=torch.int64, device=self.device)
            for pages in self._pages(group):
                pages.clean(index)

    def _pages(self, group: int) -> Iterator[Pages]:
        mine = (layer for layer, own in zip(self.layers, self.group_of, strict=False) if own == group)
        return (pages for layer in mine for pages in (layer.keys, layer.values))


def kv_dtype(config: EngineConfig, model: torch.dtype) -> torch.dtype:
    return model if config.kv_dtype == "auto" else KV_DTYPES[config.kv_dtype]


def block_bytes(specs: Sequence[AttentionSpec], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block of layers that are one group, scales included."""
    rows = (
        spec.num_kv_heads * row_bytes(dim, dtype) for spec in specs for dim in (spec.head_dim, spec.value_dim)
    )
    return block_size * sum(rows)


def choose_num_blocks(
    config: EngineConfig,
    sizes: Sequence[int],
    windows: Sequence[Window | None],
    max_model_len: int,
    device: torch.device,
) -> list[int]:
    """Of each group, with blocks of these `sizes`: twice what `max_num_seqs` requests of full length hold at once. If
    the bytes set or left on the device are fewer, what one of them holds, and of the rest an equal share."""
    ones, wanted = zip(*(_demand(config, max_model_len, window) for window in windows), strict=True)
    if config.num_blocks is not None:
        counts = [config.num_blocks, *(min(config.num_blocks, count) for count in wanted[1:])]
    else:
        limit = config.kv_cache_bytes or _default_bytes(device)
        least, most = (sum(map(mul, counts, sizes)) for counts in (ones, wanted))
        spare, more = min(limit, most) - least, most - least
        counts = [one + (count - one) * spare // more for one, count in zip(ones, wanted, strict=True)]
    if any(count < one for count, one in zip(counts, ones, strict=True)):
        first, window = max(0, counts[0]), windows[0]
        raise ConfigError(
            f"the KV cache has room for {first * config.block_size} tokens, but one request may have {max_model_len}"
            + (f" and sees {window.tokens} of them" if window else "")
            + ". Lower max_model_len, or raise kv_cache_bytes or num_blocks.",
            param="max_model_len",
        )
    return counts


def _demand(config: EngineConfig, max_model_len: int, window: Window | None) -> tuple[int, int]:
    """The blocks of a group that one request holds at most, and those that there should be."""
    one, a_step = (-(-tokens // config.block_size) for tokens in (max_model_len, config.max_step_tokens))
    batch = one * config.max_num_seqs
    if window is not None:
        one = min(one, window.most_blocks)
        batch = min(batch, one * config.max_num_seqs + a_step)
    return one, batch * ROOM_FOR_PREFIXES


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
