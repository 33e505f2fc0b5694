"""Batches of a training step, as rows for this rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rondo.data.batching.datasets import Dataset, Learned
from rondo.data.batching.packing import PackedRow, flat_row, plan_rows
from rondo.data.batching.sampler import DocumentSampler, DocumentSpan, DocumentSpans, Position

MakeRow = Callable[[list[Any]], PackedRow]
"""Converts the items read from a dataset to a row."""


@dataclass(frozen=True)
class Batch:
    rows: list[PackedRow]
    """Rows of this rank."""
    valid: int
    """Number of loss terms (predictions, or another unit of the loss) in the batch, on all ranks together."""
    position: Position
    """Start of the next batch."""
    unfilled: float
    """Share of the step's token budget that no remaining span was short enough to fill."""
    epochs: float


@dataclass(frozen=True)
class DataRank:
    """This rank's part of every batch: rows are assigned round-robin."""

    number: int = 0
    of: int = 1


class Loader:
    """Loads batches. Every rank plans the whole batch, which requires only the documents' lengths, and reads its own
    rows."""

    def __init__(
        self,
        datasets: Sequence[Dataset],
        *,
        seed: int,
        tokens_per_step: int,
        tokens_per_microbatch: int,
        longest: int | None,
        weights: Sequence[float] | None = None,
        rank: DataRank | None = None,
        make_row: MakeRow | None = None,
    ) -> None:
        """Documents with more than `longest` tokens to predict are cut; None leaves them whole."""
        self._datasets = list(datasets)
        pieces = [DocumentSpans(dataset.lengths, longest) for dataset in datasets]
        shares = [1.0] * len(pieces) if weights is None else weights
        self._sampler = DocumentSampler(pieces, shares, seed, tokens_per_step)
        self._tokens_per_step = tokens_per_step
        self._tokens_per_microbatch = tokens_per_microbatch
        self._rank = rank or DataRank()
        self._make_row = make_row or _flat

    def __call__(self, position: Position) -> Batch:
        pieces, after = self._sampler.take(position)
        sizes = [piece.size for piece in pieces]
        plan = plan_rows(sizes, self._tokens_per_microbatch)
        return Batch(
            rows=self._rows(pieces, plan[self._rank.number :: self._rank.of]),
            valid=sum(self._datasets[piece.source].valid(piece) for piece in pieces),
            position=after,
            unfilled=max(0.0, 1 - sum(sizes) / self._tokens_per_step),
            epochs=self._sampler.epochs(after),
        )

    def _rows(self, pieces: Sequence[DocumentSpan], plan: Sequence[Sequence[int]]) -> list[PackedRow]:
        learned = self._read([pieces[i] for row in plan for i in row])
        rows = []
        for row in plan:
            own, learned = learned[: len(row)], learned[len(row) :]
            rows.append(self._make_row(own))
        return rows

    def _read(self, pieces: Sequence[DocumentSpan]) -> list[Any]:
        """Reads the spans source by source, with one request to a remote store for each."""
        found: dict[DocumentSpan, Any] = {}
        for source, dataset in enumerate(self._datasets):
            own = [piece for piece in pieces if piece.source == source]
            found |= zip(own, dataset.read(own), strict=True)
        return [found[piece] for piece in pieces]


def rows_of_all(
    dataset: Dataset,
    tokens_per_microbatch: int,
    *,
    longest: int | None = None,
    make_row: MakeRow | None = None,
) -> list[PackedRow]:
    """Rows that contain every span of a dataset once."""
    pieces = DocumentSpans(dataset.lengths, longest)
    all_pieces = pieces.at(np.arange(len(pieces)))
    read = dataset.read(all_pieces)
    plan = plan_rows([piece.size for piece in all_pieces], tokens_per_microbatch)
    return [(make_row or _flat)([read[i] for i in row]) for row in plan]


def _flat(own: list[Learned]) -> PackedRow:
    return flat_row([tokens for tokens, _ in own], [weights for _, weights in own])
