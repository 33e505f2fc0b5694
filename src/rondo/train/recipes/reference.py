"""The reference of preference training: log-probabilities of answers under the initial model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from rondo.base.storage.files import atomic_write
from rondo.data.batching.packing import Document, Floats, PackedRow, Tree, pack
from rondo.models.adapters.attached import switched_off
from rondo.train.evaluation.evaluator import Evaluator


class Reference(Protocol):
    def given(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> list[PackedRow]:
        """The rows with the log-probability of each document as the fact `reference`."""


@dataclass(frozen=True)
class Computed:
    """Reference computed for each batch: by a separate model, or by the learner's base with the adapter disabled."""

    own: Evaluator | None = None

    def given(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> list[PackedRow]:
        off: AbstractContextManager[None] = (
            switched_off(evaluator.computing) if self.own is None else nullcontext()
        )
        with off:
            found = (self.own or evaluator).document_logprobs(rows)
        return [_with(row, own) for row, own in zip(rows, found, strict=True)]


@dataclass(frozen=True)
class Known:
    """Reference from a table of all documents, by their numbers."""

    table: Floats

    def given(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> list[PackedRow]:
        return [_with(row, self.table[row.facts["document"].astype(np.int64)]) for row in rows]


def known(
    computed: Computed, evaluator: Evaluator, items: Sequence[Document | Tree], budget: int, file: Path
) -> Known:
    """Computes all references before the first step, and stores them in `file` for a resumed process."""
    if not file.exists():
        rows = computed.given(evaluator, pack(items, budget))
        numbers = np.concatenate([row.facts["document"] for row in rows]).astype(np.int64)
        table = np.empty(len(numbers), np.float32)
        table[numbers] = np.concatenate([row.facts["reference"] for row in rows])
        atomic_write(file, table.tobytes())
    return Known(np.frombuffer(file.read_bytes(), np.float32))


def _with(row: PackedRow, reference: Floats) -> PackedRow:
    return replace(row, facts={**row.facts, "reference": reference})
