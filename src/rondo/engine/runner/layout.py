"""Layout of a step's tokens in one flat row: decodes with their draft tokens, then prompts from their beginning, then
chunks of prompts with a past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.kv.blocks import Table
from rondo.engine.runner.attend import AttentionSegment, StepLayout, piece_shape, together
from rondo.engine.runner.compiled import CompiledStep
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.models.adapters.mixed import AdapterWeights
from rondo.ops import Chunks, DecodeStep
from rondo.ops.dispatch import references_only
from rondo.ops.native.attention.attend import Pasts
from rondo.ops.native.build.build import library
from rondo.ops.native.build.numbers import GIVEN, KEPT
from rondo.ops.native.decoder.layers import TokenRows
from rondo.ops.triton.at_hand import on_device

Ints = NDArray[np.int64]


class BlockTables:
    """Block tables of the running requests in one group of layers, by row. They persist between steps: only new blocks
    are written."""

    def __init__(self, group: int, rows: int, pages: int, block_size: int) -> None:
        self.group = group
        self.block_size = block_size
        self._tables = np.zeros((rows, pages), dtype=np.int64)
        self._base = np.zeros(rows, dtype=np.int64)
        """Position where a row's table begins; blocks before it have left the window."""
        self.shifted = False
        """Whether any table has begun elsewhere than at 0."""
        self._filled = [0] * rows
        """Number of blocks in a row's table plus the number of released blocks: it changes when either does."""

    def clear(self, row: int) -> None:
        self._filled[row] = self._base[row] = 0

    def doubt(self, request: Request, length: int) -> None:
        """Marks the request's blocks beyond `length` tokens as stale, since they may differ in the next step."""
        row = request.row
        kept = -(-length // self.block_size) + int(self._base[row]) // self.block_size
        self._filled[row] = min(self._filled[row], kept)

    def update(self, requests: Iterable[Request]) -> None:
        group, filled = self.group, self._filled
        for request in requests:
            table = request.tables[group]
            if filled[request.row] != len(table.blocks) + table.passed:
                self._fill(request.row, table)

    def _fill(self, row: int, table: Table) -> None:
        blocks, passed = table.blocks, table.passed
        base = passed * self.block_size
        done = self._filled[row] - passed if self._base[row] == base else passed
        self._tables[row, done - passed : len(blocks) - passed] = blocks[done:]
        self._base[row] = base
        self.shifted = self.shifted or base > 0
        self._filled[row] = len(blocks) + passed

    def bases(self, rows: Ints) -> Ints:
        return self._base[rows]

    def slots(self, rows: Ints, seen: Ints) -> Ints:
        """Slots of the tokens that have `seen` tokens before them in their row's table."""
        slots: Ints = self._tables[rows, seen // self.block_size] * self.block_size + seen % self.block_size
        return slots

    def read(self, rows: Ints, longest: int) -> Ints:
        return self._tables[:, : -(-longest // self.block_size)].take(rows, axis=0)

    def read_from(self, bases: Ints, rows: Ints, longest: int) -> Ints:
        """Reads the tables as if they began at `bases`, with arbitrary blocks in masked places."""
        tables = self.read(rows, longest)
        at = np.arange(tables.shape[1]) - (self._base[rows] - bases)[:, None] // self.block_size
        return np.take_along_axis(tables, at.clip(0), axis=1)


@dataclass(frozen=True, slots=True)
class Past:
    """The past of each token in one group of layers: the number of tokens before it in its request's table, and its
    slot."""

    tables: BlockTables
    seen: Ints
    slots: Ints


@dataclass(frozen=True, slots=True)
class Flat:
    """Flat row of a step. For each token: its position, its owner (an index into `requests`, the decodes first), and
    its past in each group of layers."""

    requests: Sequence[Request]
    decodes: int
    """Number of tokens that belong to decodes."""
    rows: Ints
    starts: Ints
    """First token of each request, and the total number of tokens."""
    tokens: Ints
    positions: Ints
    owners: Ints
    pasts: Sequence[Past]

    @property
    def lengths(self) -> Ints:
        """Length of each token's request including this step."""
        last = self.positions[self.starts[1:] - 1] + 1
        own = last[self.owners]
        own[: self.decodes] = self.positions[: self.decodes] + 1
        return own


def flatten(plan: StepPlan, chunks: Sequence[Request], groups: Sequence[BlockTables]) -> Flat:
    """Builds the flat row. `chunks` are in row order."""
    requests = [*plan.decodes, *chunks]
    tokens = [request.tokens[request.computed] for request in plan.decodes]
    counts = np.ones(len(requests), dtype=np.int64)
    if plan.ahead:
        counts[: len(tokens)] = rows_of(plan.decodes)
        tokens = [token for last, r in zip(tokens, plan.decodes) for token in (last, *r.proposed)]
    decodes = len(tokens)
    for i, request in enumerate(chunks, len(plan.decodes)):
        counts[i] = request.planned
        tokens += request.tokens[request.computed : request.computed + request.planned]
    firsts = np.array([request.computed for request in requests], dtype=np.int64)
    rows = np.array([request.row for request in requests], dtype=np.int64)
    starts = np.zeros(len(requests) + 1, dtype=np.int64)
    counts.cumsum(out=starts[1:])
    owners = np.arange(len(requests)).repeat(counts)
    positions = np.arange(len(tokens)) + (firsts - starts[:-1])[owners]
    pasts = [_past(tables, requests, rows, owners, positions) for tables in groups]
    for request in plan.ahead:
        for tables in groups:
            tables.doubt(request, request.computed)
    return Flat(
        requests,
        decodes,
        rows,
        starts,
        np.array(tokens, dtype=np.int64),
        positions,
        owners,
        pasts,
    )


def _past(
    tables: BlockTables, requests: Sequence[Request], rows: Ints, owners: Ints, positions: Ints
) -> Past:
    tables.update(requests)
    seen = positions - tables.bases(rows)[owners] if tables.shifted else positions
    return Past(tables, seen, tables.slots(rows[owners], seen))


def compiled_step(
    flat: Flat, tokens: Tensor, positions: Tensor, served: Sequence[AdapterWeights | None], by_length: bool
) -> CompiledStep:
    """Builds the step of the compiled decoder, which handles all tokens alike, with the tables and the adapter of their
    requests. Lengths count from the beginning of the first group's tables, which has the largest window. `tokens` is
    read when the step runs."""
    first, *others = flat.pasts
    longest = int(first.seen.max()) + 1
    tables = [first.tables.read(flat.rows, longest)]
    if others:
        bases = first.tables.bases(flat.rows)
        tables += [past.tables.read_from(bases, flat.rows, longest) for past in others]
    rows = TokenRows(
        tokens,
        positions,
        int(flat.positions.max()) + 1,
        _stack(tables),
        torch.from_numpy(flat.owners),
        torch.from_numpy(first.seen + 1),
        _stack([past.slots for past in flat.pasts]),
        longest,
        related=len(flat.requests) < len(flat.tokens),
        wholes=torch.from_numpy(flat.lengths) if by_length else None,
        adapters=_addresses(served),
    )
    return CompiledStep(rows, served)


def _stack(groups: Sequence[Ints]) -> Tensor:
    return torch.from_numpy(groups[0][None] if len(groups) == 1 else np.stack(groups))


def _addresses(served: Sequence[AdapterWeights | None]) -> Tensor | None:
    if not any(served):
        return None
    return torch.tensor(
        [0 if one is None or one.addresses is None else one.addresses.data_ptr() for one in served]
    )


def step_layouts(flat: Flat, device: torch.device, given: torch.dtype, kept: torch.dtype) -> list[StepLayout]:
    """Layout for each group of layers, with the best operation for each kind of token. `given` is the model's type,
    `kept` the cache's."""
    lengths = to_device(flat.lengths, device)
    compiled = (
        device.type == "cpu"
        and given in GIVEN
        and kept in KEPT
        and not references_only()
        and library("attend") is not None
    )
    if compiled:
        return [_alike(flat, past, lengths) for past in flat.pasts]
    if on_device(device) and not references_only():
        return [_in_chunks(flat, past, lengths, device) for past in flat.pasts]
    return [_step_layout(flat, past, lengths, device) for past in flat.pasts]


def _step_layout(flat: Flat, past: Past, lengths: Tensor, device: torch.device) -> StepLayout:
    count, tables = flat.decodes, past.tables
    first = int(flat.owners[count - 1]) + 1 if count else 0
    fresh = [count] if first < len(flat.requests) else []
    pieces = []
    for i in range(first, len(flat.requests)):
        start, stop = int(flat.starts[i]), int(flat.starts[i + 1])
        seen, end = int(past.seen[start]), int(past.seen[stop - 1]) + 1
        if flat.requests[i].computed:
            pieces.append(
                AttentionSegment(start, stop - start, seen, tables.read(flat.rows[i : i + 1], end)[0])
            )
        else:
            fresh.append(stop)
    return StepLayout(
        lengths,
        _decode_step(flat, past, device) if count else None,
        to_device(past.slots[count:], device),
        fresh,
        together(pieces, tables.block_size, device),
        related=first < count,
    )


def _in_chunks(flat: Flat, past: Past, lengths: Tensor, device: torch.device) -> StepLayout:
    """The decodes, and the next tokens of all other requests, with or without a past."""
    count, tables = flat.decodes, past.tables
    first = int(flat.owners[count - 1]) + 1 if count else 0
    slots = to_device(past.slots[count:], device)
    chunks = None
    if first < len(flat.requests):
        pasts, counts = past.seen[flat.starts[first:-1]], np.diff(flat.starts[first:])
        table = tables.read(flat.rows[first:], int((pasts + counts).max()))
        chunks = Chunks(to_device(table, device), slots, counts.tolist(), pasts.tolist())
    decodes = _decode_step(flat, past, device) if count else None
    return StepLayout(lengths, decodes, slots, related=first < count, chunks=chunks)


def _alike(flat: Flat, past: Past, lengths: Tensor) -> StepLayout:
    """Layout of a step that handles all tokens alike, each over its request's pages. A step of decodes only has a
    kernel that also writes to the cache."""
    only = flat.decodes == len(flat.tokens)
    related = only and len(flat.requests) < flat.decodes
    decodes = _decode_step(flat, past, lengths.device) if only else None
    table = past.tables.read(flat.rows, int(past.seen.max()) + 1)
    seen = past.seen + 1
    pasts = Pasts(
        torch.from_numpy(table), torch.from_numpy(flat.owners), torch.from_numpy(seen), int(seen.sum())
    )
    return StepLayout(lengths, decodes, torch.from_numpy(past.slots), related=related, pasts=pasts)


def _decode_step(flat: Flat, past: Past, device: torch.device) -> DecodeStep:
    seen = past.seen[: flat.decodes]
    longest = int(seen.max()) + 1
    own = past.tables.read(flat.rows[flat.owners[: flat.decodes]], longest)
    slots = past.slots[: flat.decodes]
    return DecodeStep(to_device(own, device), to_device(seen + 1, device), to_device(slots, device), longest)


def shape(request: Request, block_size: int) -> tuple[int, int]:
    """Sort key: prompts without a past first, then chunks of one size class next to each other."""
    past = request.computed - request.tables[0].passed * block_size
    return piece_shape(past, request.planned) if request.computed else (0, 0)


def to_device(array: Ints, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def rows_of(requests: Iterable[Request]) -> Ints:
    """Number of tokens of each decode: its own and its draft tokens."""
    return np.array([1 + len(request.proposed) for request in requests], dtype=np.int64)


def offsets(counts: Ints) -> Ints:
    """[2, 3] -> [0, 1, 0, 1, 2]."""
    ends = counts.cumsum()
    return np.arange(ends[-1]) - (ends - counts).repeat(counts)
