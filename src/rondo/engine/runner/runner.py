"""Executes a plan: arranges its tokens in one flat row, runs the model, and samples for each request that has caught
up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.kv.cache import KVCache
from rondo.engine.kv.host import HostCache
from rondo.engine.runner.attend import Paged, StepLayout
from rondo.engine.runner.compiled import CompiledDecoder, CompiledStep
from rondo.engine.runner.graphs import graphs_of
from rondo.engine.runner.layout import (
    BlockTables,
    Flat,
    compiled_step,
    flatten,
    offsets,
    rows_of,
    shape,
    step_layouts,
    to_device,
)
from rondo.engine.runner.pooling import Pools, parts_of, pools_of
from rondo.engine.runner.sampler import Drawn, Sampled, Sampler, SamplingBatch
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.models import Decoder
from rondo.models.adapters.mixed import AdapterWeights, Mixer, Mixture, Span
from rondo.models.heads.additions import adding
from rondo.models.parts import take

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step. `requests` received one token each, in the order of `sampled`, followers included; a request
    with draft tokens occurs once more for each of them. All other requests are still catching up. The vectors of
    `pooled` are complete."""

    requests: list[Request]
    sampled: Sampled | None
    pooled: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step ready to run. Its request data are copied, so that requests may change while it runs.

    `read` are the rows of the flat row that produce logits or contribute to a vector (`pools`); `counts` is the number
    of requests (a leader and its followers) that sample from each row of logits; `batch` is None if no request has
    caught up.
    """

    plan: StepPlan
    tokens: Tensor
    positions: Tensor
    layout: Sequence[StepLayout] | CompiledStep
    mixture: Mixture | None
    read: Tensor | None
    counts: Tensor | None
    batch: SamplingBatch | None
    pools: Pools | None

    @property
    def pooled(self) -> list[Request]:
        """Requests whose vector this step completes."""
        return [] if self.pools is None else self.pools.ended

    @property
    def requests(self) -> list[Request]:
        return [] if self.batch is None else self.batch.requests


class Runner:
    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        sampler: Sampler,
        max_num_seqs: int,
        max_model_len: int,
        mixer: Mixer | None = None,
        hosts: Sequence[HostCache] = (),
        cuda_graphs: bool = False,
    ) -> None:
        self.model = model
        self.cache = cache
        self.hosts = hosts
        self.sampler = sampler
        self.max_model_len = max_model_len
        self.mixer = mixer
        self.device = model.device
        size = cache.block_size
        self.tables = [
            BlockTables(group, max_num_seqs, -(-max_model_len // size), size)
            for group in range(len(cache.num_blocks))
        ]
        self.compiled = CompiledDecoder.of(model, cache, None if mixer is None else mixer.sites)
        self.graphs = graphs_of(model, cache, max_num_seqs, max_model_len) if cuda_graphs else None

    def run(self, plan: StepPlan) -> StepResult:
        step = self.prepare(plan)
        drawn = self.execute(step)
        return StepResult(step.requests, None if drawn is None else drawn.read(), step.pooled)

    def prepare(self, plan: StepPlan) -> PreparedStep:
        for request in plan.admitted:
            for tables in self.tables:
                tables.clear(request.row)
            self.sampler.admit(request)
        chunks = sorted(plan.chunks, key=partial(shape, block_size=self.cache.block_size))
        flat = flatten(plan, chunks, self.tables)
        leaders, rows = _caught_up(plan, chunks)
        readers, rows, pools = pools_of(
            parts_of(flat.requests, flat.starts, self.model.config.vocab_size), leaders, rows
        )
        every = len(rows) == len(flat.tokens)
        read = None if every else to_device(np.array(rows, dtype=np.int64), self.device)
        requests = leaders
        if any(leader.followers for leader in leaders):
            requests = [each for leader in leaders for each in (leader, *leader.followers)]
        ahead = offsets(rows_of(dict.fromkeys(leaders))) if plan.ahead and leaders else None
        counts = None
        if len(requests) > len(leaders):
            samples = np.array([1 + len(leader.followers) for leader in leaders], dtype=np.int64)
            counts = to_device(samples, self.device)
            ahead = None if ahead is None else ahead.repeat(samples)
        batch = self.sampler.batch(requests, ahead) if requests else None
        tokens, positions = (to_device(array, self.device) for array in (flat.tokens, flat.positions))
        layout, mixture = self._layout(flat, tokens, positions, readers)
        return PreparedStep(plan, tokens, positions, layout, mixture, read, counts, batch, pools)

    @torch.inference_mode()
    def execute(self, step: PreparedStep) -> Drawn | None:
        logits = self.forward(step)
        if logits is None or step.batch is None:
            return None
        if step.counts is not None:
            logits = logits.repeat_interleave(step.counts, 0, output_size=len(step.requests))
        return self.sampler.sample(logits, step.batch)

    @torch.inference_mode()
    def forward(self, step: PreparedStep) -> Tensor | None:
        """Logits of the next token, one row per request that has caught up and one per draft token. Pooling parts take
        their outputs on the way."""
        self._move_blocks(step.plan)
        head: Callable[[Tensor], Tensor] = self.model.head
        if isinstance(step.layout, CompiledStep):
            assert self.compiled is not None
            if step.pools is None:
                logits = self.compiled.logits(step.layout, step.read)
                return None if step.batch is None else logits
            head = self.compiled.head
            x = self.compiled.trunk(step.layout, step.read)
        else:
            x = self._trunk(step, step.layout)
        if step.pools is not None:
            x = step.pools.take(x, self.model.head.norm, head)
        return None if step.batch is None else head(x)

    def _trunk(self, step: PreparedStep, layouts: Sequence[StepLayout]) -> Tensor:
        if self.graphs is not None and step.mixture is None and self.graphs.can(layouts):
            return take(self.graphs.trunk(step.tokens, step.positions, layouts), step.read)
        with adding(step.mixture):
            return self.model.trunk(step.tokens, step.positions, Paged(self.cache, layouts), step.read)

    def forget_graphs(self) -> None:
        """Drops the CUDA graphs before their memory is released."""
        if self.graphs is not None:
            self.graphs.forget()

    def _move_blocks(self, plan: StepPlan) -> None:
        """Copies and swaps blocks before the step writes. The order matters: copies complete the blocks of requests
        that may be swapped out, and read blocks that may have a new owner by now. Swapped-out blocks are then complete
        and not yet overwritten, since only swapped-in blocks and the step write to reallocated blocks. On a GPU the
        stream ensures the order."""
        self.cache.copy(plan.copies)
        for host, pairs in zip(self.hosts, plan.swap_out, strict=True):
            if pairs:
                host.store(pairs)
        for host, pairs in zip(self.hosts, plan.swap_in, strict=True):
            if pairs:
                host.load(pairs)

    def _layout(
        self, flat: Flat, tokens: Tensor, positions: Tensor, readers: list[Request]
    ) -> tuple[Sequence[StepLayout] | CompiledStep, Mixture | None]:
        served = [] if self.mixer is None else _served_of(flat.requests)
        if self.compiled is not None and self.compiled.can(served):
            self._forget()
            return compiled_step(flat, tokens, positions, served, self.compiled.by_length), None
        layouts = step_layouts(flat, self.device, self.model.dtype, self.cache.dtype)
        return layouts, self._mixture(flat, served, readers)

    def _mixture(
        self, flat: Flat, served: list[AdapterWeights | None], readers: list[Request]
    ) -> Mixture | None:
        """Mixture of the adapters in this step, in the order of the flat row; `readers` are the owners of the read
        rows."""
        if self.mixer is None or not served:
            self._forget()
            return None
        counts = np.diff(flat.starts).tolist()
        spans = [Span(*each) for each in zip(served, flat.starts.tolist(), counts, strict=False)]
        of_readers = _served_of(readers) or [None] * len(readers)
        return self.mixer.mix(len(flat.tokens), spans, of_readers)

    def _forget(self) -> None:
        if self.mixer is not None:
            self.mixer.forget()


def _served_of(requests: Sequence[Request]) -> list[AdapterWeights | None]:
    """Adapter of each request; empty if no request has one."""
    adapters = [request.adapter for request in requests]
    return [None if each is None else each.served for each in adapters] if any(adapters) else []


def _caught_up(plan: StepPlan, chunks: list[Request]) -> tuple[list[Request], list[int]]:
    """Requests whose last token is computed in this step, and the row of that token; draft tokens add
    one entry each."""
    decodes = plan.decodes
    if plan.ahead:
        decodes = [each for request in decodes for each in (request, *(request for _ in request.proposed))]
    rows = [
        i
        for i, request in enumerate(decodes)
        if request.computed + 1 == len(request.tokens) and request.pooling is None
    ]
    requests = decodes.copy() if len(rows) == len(decodes) else [decodes[i] for i in rows]
    end = len(decodes)
    for request in chunks:
        end += request.planned
        if request.remaining == request.planned and request.pooling is None:
            requests.append(request)
            rows.append(end - 1)
    return requests, rows
