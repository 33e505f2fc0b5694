"""Ranks over rows whose tokens come in pairs: a model that repeats its input predicts the second one of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rondo.data.batching.packing import Document, PackedRow, pack
from support import layouts
from support.tiny import VOCAB

REPEATS = {"initializer_range": 0.05}
"""Changes of a model that make it repeat its input: with tied weights, next to no other layer."""
_rows_of = layouts.rows_of


def rows_in_pairs(step: int, **more: Any) -> list[PackedRow]:
    rows = _rows_of(step, **more)
    for row in rows:
        row.tokens[1::2] = row.tokens[: len(row.tokens) - 1 : 2][: len(row.tokens[1::2])]
        row.targets[:] = row.tokens[np.minimum(row.where + 1, len(row.tokens) - 1)]
    return rows


def rows_with_a_late_answer(step: int, **more: Any) -> list[PackedRow]:
    """One row, whose first half predicts nothing: the first of two context-parallel ranks has no predictions."""
    tokens = np.random.default_rng(step).integers(0, VOCAB, 24).tolist()
    return pack([Document(tokens, [0.0] * 18 + [1.0] * 6)], 24)


def on_late_ranks(cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[layouts.Outcome]:
    layouts.rows_of = rows_with_a_late_answer
    return layouts.on_ranks(cases)


def on_ranks(cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[layouts.Outcome]:
    layouts.rows_of = rows_in_pairs
    return layouts.on_ranks(cases)
