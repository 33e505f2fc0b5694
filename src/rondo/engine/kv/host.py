"""Host memory for the blocks of preempted requests, and measurement of its bandwidth. The policy is in `swap.py`."""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from rondo.base.errors import ConfigError
from rondo.engine.config import EngineConfig
from rondo.engine.kv.cache import KVCache
from rondo.engine.kv.groups import GroupedPool, Pairs
from rondo.engine.kv.swap import Cost, HostPool, Swap
from rondo.models import Decoder, Packed
from rondo.models.architecture import Moe

BATCH_BYTES = 64 << 20
"""Bytes moved at once; the device needs a temporary copy of that size."""
MEASURED_BLOCKS = 64
MEASURED_SECONDS = 0.05

Agree = Callable[[int], int]
"""Maps a rank-local number to the one that all ranks of a model use."""


class HostCache:
    """Host copies of the blocks of one group: each block is a row of bytes with its layers' keys and values one after
    another, so that a block, or a run of adjacent blocks, moves in one copy. Pinned if the device is a GPU, so that
    copies are asynchronous."""

    def __init__(self, cache: KVCache, group: int, num_blocks: int) -> None:
        self.cache = cache
        self.group = group
        ends = list(accumulate((tensor[0].nbytes for tensor in self._tensors), initial=0))
        self._columns = [slice(start, stop) for start, stop in pairwise(ends)]
        self.block_bytes = ends[-1]
        self._batch = max(1, BATCH_BYTES // max(1, self.block_bytes))
        pinned = cache.device.type == "cuda"
        self.rows = torch.empty(num_blocks, self.block_bytes, dtype=torch.uint8, pin_memory=pinned)

    def store(self, pairs: Pairs) -> None:
        """Copies blocks from the device to the host; pairs are (host, device)."""
        for batch in self._batches(pairs):
            index = self._on_device([block for _, block in batch])
            rows = torch.empty(len(batch), self.block_bytes, dtype=torch.uint8, device=self.cache.device)
            for columns, tensor in zip(self._columns, self._tensors, strict=True):
                rows[:, columns] = tensor.index_select(0, index).flatten(1).view(torch.uint8)
            for run, host in _runs([host for host, _ in batch]):
                self.rows[host].copy_(rows[run], non_blocking=True)

    def load(self, pairs: Pairs) -> None:
        """Copies blocks from the host to the device; pairs are (device, host)."""
        for batch in self._batches(pairs):
            index = self._on_device([block for block, _ in batch])
            rows = torch.empty(len(batch), self.block_bytes, dtype=torch.uint8, device=self.cache.device)
            for run, host in _runs([host for _, host in batch]):
                rows[run].copy_(self.rows[host], non_blocking=True)
            for columns, tensor in zip(self._columns, self._tensors, strict=True):
                blocks = rows[:, columns].contiguous().view(tensor.dtype).view(-1, *tensor.shape[1:])
                tensor.index_copy_(0, index, blocks)

    @property
    def _tensors(self) -> list[Tensor]:
        return self.cache.tensors_of(self.group)

    def _batches(self, pairs: Pairs) -> Iterator[Pairs]:
        return (pairs[i : i + self._batch] for i in range(0, len(pairs), self._batch))

    def _on_device(self, blocks: list[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.cache.device)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Runs of adjacent blocks: their slice of the list, and their slice of block ids."""
    start = 0
    for i in range(1, len(blocks) + 1):
        if i == len(blocks) or blocks[i] != blocks[i - 1] + 1:
            yield slice(start, i), slice(blocks[start], blocks[i - 1] + 1)
            start = i


def host_caches(config: EngineConfig, cache: KVCache, agree: Agree) -> list[HostCache]:
    """Host caches of the layer groups, which share `swap_bytes` in proportion to their device memory;
    empty if it is 0."""
    if config.swap_bytes == 0:
        return []
    groups = range(len(cache.num_blocks))
    sizes = [sum(tensor[0].nbytes for tensor in cache.tensors_of(group)) for group in groups]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = sum(count * size for count, size in zip(cache.num_blocks, sizes, strict=True))
    counts = [config.swap_bytes * count // total for count in cache.num_blocks]
    if min(counts) == 0:
        raise ConfigError(
            f"swap_bytes is {config.swap_bytes}, but one KV block takes {sum(sizes)}: raise it, or set 0 to swap "
            "nothing.",
            param="swap_bytes",
        )
    if config.swap_bytes > memory:
        raise ConfigError(
            f"swap_bytes is {config.swap_bytes}, but this machine has only {memory} bytes of memory. Lower it.",
            param="swap_bytes",
        )
    return [HostCache(cache, group, agree(counts[group])) for group in groups]


def swap_of(
    config: EngineConfig, pool: GroupedPool, hosts: Sequence[HostCache], model: Decoder, agree: Agree
) -> Swap | None:
    """Creates the swap policy of the scheduler; unconfigured rates are measured once."""
    if not hosts:
        return None
    attention = tuple((window, _agreed(price, agree)) for window, price in attention_prices(model))
    bandwidth, latency = config.swap_bytes_per_second, 0.0
    if bandwidth is None:
        largest = max(hosts, key=lambda host: host.block_bytes)
        bandwidth, latency = (_agreed(figure, agree) for figure in measure_moves(largest))
    rate = config.recompute_tokens_per_second
    if rate is None:
        rate = measure_compute(model, attention, config.max_step_tokens, agree)
    places = [HostPool(host.rows.shape[0], agree(host.block_bytes)) for host in hosts]
    return Swap(pool, places, Cost(bandwidth, rate, attention, latency))


def _agreed(figure: float, agree: Agree) -> float:
    """The minimum over all ranks of a nonnegative float. Such floats have the same order as their bit patterns."""
    (bits,) = struct.unpack("<q", struct.pack("<d", figure))
    (least,) = struct.unpack("<d", struct.pack("<q", agree(bits)))
    return float(least)


def attention_prices(model: Decoder) -> tuple[tuple[int | None, float], ...]:
    """For each window: the attention cost of one (query, key) pair over all layers, as a fraction of a token's matrix
    products."""
    parameters = 0.0
    for module, layer in zip(model.layers, model.config.layers, strict=True):
        parameters += _count(module)
        if isinstance(layer.mlp, Moe):
            idle = 1 - layer.mlp.router.top_k / layer.mlp.router.num_experts
            parameters -= idle * _count(module.get_submodule("mlp.experts"))
    looks: Counter[int | None] = Counter()
    for spec in model.attention_specs():
        looks[spec.window] += spec.num_heads * (spec.head_dim + spec.value_dim)
    return tuple((window, count / parameters) for window, count in looks.items())


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def measure_moves(host: HostCache) -> tuple[float, float]:
    """Measures bandwidth (bytes per second) and latency (seconds) with round trips of one block and of many. The blocks
    are restored unchanged."""
    count = min(MEASURED_BLOCKS, host.rows.shape[0], host.cache.num_blocks[host.group])

    def round_trip(blocks: int) -> float:
        def move() -> None:
            pairs = [(block, block) for block in range(blocks)]
            host.store(pairs)
            host.load(pairs)

        return min(_seconds(move, host.cache.device) for _ in range(4))

    one, many = round_trip(1), round_trip(count)
    if many <= one:
        return 2 * count * host.block_bytes / many, 0.0
    rate = 2 * (count - 1) * host.block_bytes / (many - one)
    return rate, max(0.0, one / 2 - host.block_bytes / rate)


@torch.inference_mode()
def measure_compute(
    model: Decoder, attention: tuple[tuple[int | None, float], ...], max_tokens: int, agree: Agree
) -> float:
    """Measures prefill speed in tokens per second, without attention, on a prompt long enough to be timed. Ranks
    compute together, so they agree on its length."""
    most = min(max_tokens, model.config.max_positions)
    count = min(16, most)
    while True:
        positions = torch.arange(count, device=model.device)
        tokens = positions % model.config.vocab_size
        attend = Packed([0, count], model.device)

        def compute(tokens: Tensor = tokens, positions: Tensor = positions, attend: Packed = attend) -> None:
            model.trunk(tokens, positions, attend)

        compute()
        seconds = _agreed(min(_seconds(compute, model.device) for _ in range(2)), agree)
        if seconds > MEASURED_SECONDS or count == most:
            return Cost(1.0, 1.0, attention).work(0, count) / seconds
        count = min(2 * count, most)


def _seconds(action: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
