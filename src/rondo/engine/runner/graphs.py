"""CUDA graphs for decode steps: the model's layers are captured once per size and replayed with one call.

A graph reads from its own tensors, which each step fills. Its size is a number of rows and a reach, the maximum length
of a request. Unused rows have no past and no slot: they write nothing, and their output is dropped. Only the layers are
captured; the head and the sampler run eagerly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.base.telemetry.log import get_logger
from rondo.engine.kv.cache import KVCache
from rondo.engine.runner.attend import Paged, StepLayout
from rondo.engine.runner.model_guard import Watched
from rondo.models import Decoder
from rondo.models.architecture import Moe
from rondo.ops import DecodeStep
from rondo.ops.dispatch import references_only
from rondo.ops.triton.at_hand import FLOATS, missing
from rondo.ops.triton.attention import KEPT, WIDEST

log = get_logger(__name__)

FIRST_REACH = 1024
REACHES_GROW = 4
"""Growth factor of the reach. Thread blocks beyond a request's length exit at once, but there should not be many times
too many of them."""
WARM_UPS = 2
"""Eager runs before the capture, in which kernels are compiled and libraries allocate their memory."""

Compute = Callable[[], Tensor]
Record = Callable[[Compute], Compute]


def row_counts(most: int) -> list[int]:
    """The powers of two below `most`, and `most`."""
    return sorted({min(1 << i, most) for i in range(most.bit_length() + 1)})


def reaches(longest: int) -> list[int]:
    found = [FIRST_REACH]
    while found[-1] < longest:
        found.append(found[-1] * REACHES_GROW)
    return [*found[:-1], min(found[-1], longest)]


def fitting(sizes: Sequence[int], wanted: int) -> int:
    """The smallest sufficient size."""
    return sizes[bisect_left(sizes, wanted)]


@dataclass(frozen=True)
class GraphInputs:
    """Input tensors of a graph."""

    tokens: Tensor
    positions: Tensor
    layouts: Sequence[StepLayout]

    @classmethod
    def of(cls, rows: int, reach: int, groups: int, block_size: int, device: torch.device) -> GraphInputs:
        def numbers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        layouts = []
        for _ in range(groups):
            decodes = DecodeStep(numbers(rows, -(-reach // block_size)), numbers(rows), numbers(rows), reach)
            layouts.append(StepLayout(decodes.lengths, decodes, decodes.slots[:0]))
        return cls(numbers(rows), numbers(rows), layouts)

    def fill(self, tokens: Tensor, positions: Tensor, layouts: Sequence[StepLayout]) -> None:
        count = len(tokens)
        self.tokens[:count].copy_(tokens)
        self.positions[:count].copy_(positions)
        for own, given in zip(self.layouts, layouts, strict=True):
            to, what = own.decodes, given.decodes
            assert to is not None
            assert what is not None
            to.tables[:count, : what.tables.shape[1]].copy_(what.tables)
            to.lengths[:count].copy_(what.lengths)
            to.slots[:count].copy_(what.slots)
            to.lengths[count:].zero_()
            to.slots[count:].fill_(-1)


class DecodeGraphs:
    def __init__(
        self, model: Decoder, cache: KVCache, max_num_seqs: int, max_model_len: int, record: Record
    ) -> None:
        self.model = model
        self.cache = cache
        self.rows = row_counts(max_num_seqs)
        self.reaches = reaches(max_model_len)
        self._record = record
        self._watched = Watched(model)
        self._layers = cache.layers
        self._recorded: dict[tuple[int, int], tuple[GraphInputs, Compute]] = {}

    def can(self, layouts: Sequence[StepLayout]) -> bool:
        """Whether the step is one token each of independent requests."""
        alone = all(
            each.decodes is not None
            and each.decodes.count == len(each.lengths) <= self.rows[-1]
            and each.decodes.longest <= self.reaches[-1]
            and not each.related
            for each in layouts
        )
        return alone and not self._watched.hooked and not references_only()

    def trunk(self, tokens: Tensor, positions: Tensor, layouts: Sequence[StepLayout]) -> Tensor:
        """Equivalent of the model's `trunk`. The result is valid until the next step."""
        if self._watched.moved() or self._layers is not self.cache.layers:
            self.forget()
        reach = max(each.decodes.longest for each in layouts if each.decodes is not None)
        size = fitting(self.rows, len(tokens)), fitting(self.reaches, reach)
        found = self._recorded.get(size)
        inputs = found[0] if found else self._inputs(*size)
        inputs.fill(tokens, positions, layouts)
        if found is None:
            found = self._recorded[size] = inputs, self._record(lambda: self._compute(inputs))
        return found[1]()[: len(tokens)]

    def forget(self) -> None:
        """Drops all graphs, because the memory that they refer to was released."""
        self._recorded.clear()
        self._layers = self.cache.layers

    def _inputs(self, rows: int, reach: int) -> GraphInputs:
        return GraphInputs.of(
            rows, reach, len(self.cache.num_blocks), self.cache.block_size, self.cache.device
        )

    def _compute(self, inputs: GraphInputs) -> Tensor:
        return self.model.trunk(inputs.tokens, inputs.positions, Paged(self.cache, inputs.layouts))


def graphs_of(model: Decoder, cache: KVCache, max_num_seqs: int, max_model_len: int) -> DecodeGraphs | None:
    if why := why_not(model, cache):
        log.warning(f"cuda_graphs is set, but steps are not recorded: {why}")
        return None
    return DecodeGraphs(model, cache, max_num_seqs, max_model_len, recorder(model.device))


def why_not(model: Decoder, cache: KVCache) -> str | None:
    """The reason why steps of this model cannot be captured, or None."""
    if model.device.type != "cuda":
        return f"the device is {model.device.type}"
    if references_only():
        return "RONDO_OPS=reference asks for plain torch"
    if why := missing():
        return why
    if any(isinstance(layer.mlp, Moe) for layer in model.config.layers):
        return "which expert has how many rows is known on the host alone"
    if any(rope.by_length for rope in model.ropes):
        return "rotations depend on how long a request is"
    if any(max(spec.head_dim, spec.value_dim) > WIDEST for spec in cache.specs):
        return f"attention has heads of more than {WIDEST} numbers"
    if model.dtype not in FLOATS or cache.dtype not in KEPT:
        return f"weights are {model.dtype} and the KV cache is {cache.dtype}"
    return None


def recorder(device: torch.device) -> Record:
    """Creates a recorder. Its graphs share one memory pool, since they run one after another."""
    pool = torch.cuda.graph_pool_handle()

    def record(compute: Compute) -> Compute:
        with torch.cuda.device(device):
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    compute()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                out = compute()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return record
