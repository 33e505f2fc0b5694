"""Executes a plan: lays its tokens out in one flat row, runs the model, and samples where a request has caught up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.attend import Paged, Piece, StepLayout, piece_shape, together
from rondo.engine.cache import KVCache
from rondo.engine.host import HostCache
from rondo.engine.plan import Plan
from rondo.engine.request import Request
from rondo.engine.sampler import Batch, Drawn, Sampled, Sampler
from rondo.models import Decoder
from rondo.models.adapters.mixed import Mixer, Mixture, Served, Span
from rondo.models.additions import adding
from rondo.ops import DecodeStep

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepResult:
    """`requests` got one token each, in the order of `sampled`, riders included; the others are still catching up. One
    that carried proposals is there once more for each of them."""

    requests: list[Request]
    sampled: Sampled | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step laid out. What it needs of its requests is copied, so that they may move on while it runs.

    `read` are the rows of the flat row that give logits, `counts` how many requests (a leader and its riders) sample
    from each; `batch` is None where nobody has caught up.
    """

    plan: Plan
    tokens: Tensor
    positions: Tensor
    layout: StepLayout
    mixture: Mixture | None
    read: Tensor | None
    counts: Tensor | None
    batch: Batch | None

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
        host: HostCache | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.host = host
        self.sampler = sampler
        self.max_model_len = max_model_len
        self.mixer = mixer
        self.device = model.device
        pages = -(-max_model_len // cache.block_size)
        self._tables = np.zeros((max_num_seqs, pages), dtype=np.int64)
        self._base = np.zeros(max_num_seqs, dtype=np.int64)
        """The position where a row's table begins: blocks before it have passed out of every layer's window."""
        self._filled = [0] * max_num_seqs
        """How many blocks a row's table was made for, plus how many had passed: it changes when either does."""

    def run(self, plan: Plan) -> StepResult:
        step = self.prepare(plan)
        drawn = self.execute(step)
        return StepResult(step.requests, None if drawn is None else drawn.read())

    def prepare(self, plan: Plan) -> Prepared:
        for request in plan.admitted:
            self._filled[request.row] = self._base[request.row] = 0
            self.sampler.admit(request)
        chunks = sorted(plan.chunks, key=self._shape)
        tokens, positions, layout = self._lay_out(plan, chunks)
        leaders, rows = _caught_up(plan, chunks)
        read = None if len(rows) == len(tokens) else self.to_device(np.array(rows, dtype=np.int64))
        requests = [each for leader in leaders for each in (leader, *leader.riders)]
        ahead = _offsets(_rows_of(dict.fromkeys(leaders))) if plan.ahead and leaders else None
        counts = None
        if len(requests) > len(leaders):
            samples = np.array([1 + len(leader.riders) for leader in leaders], dtype=np.int64)
            counts = self.to_device(samples)
            ahead = None if ahead is None else ahead.repeat(samples)
        batch = self.sampler.batch(requests, ahead) if requests else None
        mixture = self._mixture(plan.decodes, chunks, leaders, len(tokens))
        return Prepared(plan, tokens, positions, layout, mixture, read, counts, batch)

    @torch.inference_mode()
    def execute(self, step: Prepared) -> Drawn | None:
        logits = self.forward(step)
        if logits is None or step.batch is None:
            return None
        if step.counts is not None:
            logits = logits.repeat_interleave(step.counts, 0, output_size=len(step.requests))
        return self.sampler.sample(logits, step.batch)

    @torch.inference_mode()
    def forward(self, step: Prepared) -> Tensor | None:
        """The logits for the next token of those that caught up, one row each, and one more for each proposal."""
        self._move_blocks(step.plan)
        with adding(step.mixture):
            x = self.model.trunk(step.tokens, step.positions, Paged(self.cache, step.layout), step.read)
        return None if step.batch is None else self.model.head(x)

    def _move_blocks(self, plan: Plan) -> None:
        """In this order, and all before the step writes. Copies complete what a request that is swapped out holds,
        and come from blocks that may be another's by now. What is swapped out is then whole, and still there: only
        blocks that come in, and the step, write to blocks that are given anew. On a GPU the order is the stream's."""
        if plan.copies:
            self.cache.copy(plan.copies)
        if self.host is not None and plan.swap_out:
            self.host.store(plan.swap_out)
        if self.host is not None and plan.swap_in:
            self.host.load(plan.swap_in)

    def doubt(self, request: Request, length: int) -> None:
        """Of the request's blocks, those beyond `length` tokens may not be the same in the next step."""
        row, size = request.row, self.cache.block_size
        kept = -(-length // size) + int(self._base[row]) // size
        self._filled[row] = min(self._filled[row], kept)

    def _mixture(
        self, decodes: list[Request], chunks: list[Request], read: list[Request], count: int
    ) -> Mixture | None:
        """What the adapters of this step's requests add, in the order of the flat row."""
        if self.mixer is None:
            return None
        if all(request.adapter is None for request in (*decodes, *chunks)):
            self.mixer.forget()
            return None
        counts = [1 + len(request.proposed) for request in decodes] + [r.planned for r in chunks]
        starts = accumulate(counts, initial=0)
        spans = [
            Span(_served(request), start, own)
            for request, start, own in zip((*decodes, *chunks), starts, counts, strict=False)
        ]
        return self.mixer.mix(count, spans, [_served(request) for request in read])

    def _lay_out(self, plan: Plan, chunks: list[Request]) -> tuple[Tensor, Tensor, StepLayout]:
        """The flat row: decodes with what they carry, then prompts from their beginning, then prompts with a past."""
        size = self.cache.block_size
        decodes = plan.decodes
        for request in decodes:
            if self._filled[request.row] != len(request.blocks) + request.passed:
                self._fill(request)
        rows = np.array([request.row for request in decodes], dtype=np.int64)
        at = np.array([request.computed for request in decodes], dtype=np.int64)
        tokens = [request.tokens[request.computed] for request in decodes]
        if plan.ahead:
            counts = _rows_of(decodes)
            rows, at = rows.repeat(counts), at.repeat(counts) + _offsets(counts)
            tokens = [token for last, r in zip(tokens, decodes, strict=True) for token in (last, *r.proposed)]
            for request in plan.ahead:
                self.doubt(request, request.computed)
        seen = at - self._base[rows]
        slots = self._tables[rows, seen // size] * size + at % size
        lengths = at + 1
        step = None
        if decodes:
            longest = int(seen.max()) + 1
            tables = self._tables[:, : -(-longest // size)].take(rows, axis=0)
            on_device = self.to_device(tables), self.to_device(seen + 1), self.to_device(slots)
            step = DecodeStep(*on_device, longest)
        fresh: list[int] = []
        pieces: list[Piece] = []
        if chunks:
            positions_parts, length_parts = [at], [lengths]
            slot_parts: list[Ints] = []
            start = len(tokens)
            fresh.append(start)
            for request in chunks:
                self._fill(request)
                first, count = request.computed, request.planned
                where = np.arange(first, first + count)
                table, base = self._tables[request.row], int(self._base[request.row])
                tokens += request.tokens[first : first + count]
                positions_parts.append(where)
                slot_parts.append(table[(where - base) // size] * size + where % size)
                length_parts.append(np.full(count, first + count))
                if first:
                    pieces.append(
                        Piece(start, count, first - base, table[: -(-(first - base + count) // size)])
                    )
                else:
                    fresh.append(start + count)
                start += count
            at, slots = np.concatenate(positions_parts), np.concatenate(slot_parts)
            lengths = np.concatenate(length_parts)
        groups = together(pieces, size, self.device)
        layout = StepLayout(
            self.to_device(lengths), step, self.to_device(slots), fresh, groups, bool(plan.ahead)
        )
        return self.to_device(np.array(tokens, dtype=np.int64)), self.to_device(at), layout

    def _shape(self, request: Request) -> tuple[int, int]:
        """Prompts without a past first; then those that attend together side by side."""
        past = request.computed - request.passed * self.cache.block_size
        return piece_shape(past, request.planned) if request.computed else (0, 0)

    def _fill(self, request: Request) -> None:
        row, blocks, passed = request.row, request.blocks, request.passed
        base = passed * self.cache.block_size
        done = self._filled[row] - passed if self._base[row] == base else passed
        self._tables[row, done - passed : len(blocks) - passed] = blocks[done:]
        self._base[row] = base
        self._filled[row] = len(blocks) + passed

    def to_device(self, array: Ints) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)


def _served(request: Request) -> Served | None:
    return None if request.adapter is None else request.adapter.served


def _rows_of(requests: Iterable[Request]) -> Ints:
    return np.array([1 + len(request.proposed) for request in requests], dtype=np.int64)


def _offsets(counts: Ints) -> Ints:
    """[2, 3] -> [0, 1, 0, 1, 2]."""
    ends = counts.cumsum()
    return np.arange(ends[-1]) - (ends - counts).repeat(counts)


def _caught_up(plan: Plan, chunks: list[Request]) -> tuple[list[Request], list[int]]:
    """The requests whose last token is computed in this step, and the row it is in; then those of its proposals."""
    decodes = plan.decodes
    if plan.ahead:
        decodes = [each for request in decodes for each in (request, *(request for _ in request.proposed))]
    rows = [i for i, request in enumerate(decodes) if len(request.tokens) - request.computed == 1]
    requests = decodes.copy() if len(rows) == len(decodes) else [decodes[i] for i in rows]
    end = len(decodes)
    for request in chunks:
        end += request.planned
        if request.computed + request.planned == len(request.tokens):
            requests.append(request)
            rows.append(end - 1)
    return requests, rows
