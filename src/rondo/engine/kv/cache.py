"""Memory of the KV cache: for each layer, the keys and values of every block of its group."""

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
"""Factor over the blocks of a full batch; the rest holds prefixes of earlier requests."""

KV_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class LayerCache:
    """Keys of KV heads with D elements, values of KV heads with Dv elements."""

    keys: Pages
    values: Pages


class KVCache:
    """`num_blocks` is the number of blocks of each group, `group_of` the group of each layer (default: the first)."""

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
        """Frees the memory, with its content, until `allocate`."""
        self.layers = []

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the cache."""
        return [tensor for group in range(len(self.num_blocks)) for tensor in self.tensors_of(group)]

    def tensors_of(self, group: int) -> list[Tensor]:
        """The tensors of a group, for moving whole blocks: their first axis is the block."""
        return [tensor for pages in self._pages(group) for tensor in pages.tensors]

    def copy(self, copies: Moves) -> None:
        """Copies blocks as if all were read before any is written."""
        for group, pairs in enumerate(copies):
            if not pairs:
                continue
            to, source = torch.tensor(pairs, dtype=torch.int64, device=self.device).unbind(1)
            for tensor in self.tensors_of(group):
                tensor.index_copy_(0, to, tensor.index_select(0, source))

    def clean(self, tables: Sequence[Table]) -> None:
        """Replaces NaN and infinity in blocks before their next owner uses them: a masked position has attention weight
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
    """Bytes of one block for the layers of one group, scales included."""
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
    """Chooses the number of blocks of each group from the block `sizes` in bytes. The default is twice the maximum of
    `max_num_seqs` requests of full length. If the configured or available bytes do not suffice, each group receives the
    blocks of one request plus an equal share of the rest."""
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
    """Maximum number of blocks of one request in a group, and the wanted number of blocks."""
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
    """Zeros, since a masked position must not hold a NaN. On the CPU they are anonymous memory-mapped pages: unwritten
    pages use no memory, and released pages return to the system regardless of the C library's allocator."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
