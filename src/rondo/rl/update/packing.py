"""Packing of a step's samples into rows, and mapping of token values between samples and rows.

The tokens of all samples of a step are numbered in order. A row stores the number of each predicted token, so that
columns can be added after packing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import ConfigError
from rondo.data.batching.balance import balanced
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.rl.algorithms import Aggregate
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.update.advantages import token_weights

Columns = dict[str, NDArray[np.float64]]
"""Columns by name, with one number per token of the step."""
NUMBER = "number"
"""Column of token numbers during packing."""
MOST_TOKENS = 2**24
"""Columns are float32, which represents integers exactly up to this number."""


class StepTokens:
    def __init__(self, groups: Sequence[SampleGroup]) -> None:
        self.groups = groups
        samples = [sample for group in groups for sample in group.samples]
        self._sizes = [sum(len(piece.token_ids) for piece in sample.pieces) for sample in samples]
        self._ends = np.cumsum([0, *self._sizes]).tolist()
        self._first = np.cumsum([0, *(len(group.samples) for group in groups)]).tolist()
        """Number of each group's first sample."""
        if self.count > MOST_TOKENS:
            raise ConfigError(
                f"a step has {self.count} tokens, and at most {MOST_TOKENS} can be: lower prompts_per_step or "
                "samples_per_prompt",
                param="rl.prompts_per_step",
            )

    @property
    def count(self) -> int:
        return int(self._ends[-1])

    @property
    def sampler_logprobs(self) -> NDArray[np.float64]:
        samples = (sample for group in self.groups for sample in group.samples)
        return np.array([x for sample in samples for piece in sample.pieces for x in piece.logprobs])

    def begin(self, group: int, sample: int) -> int:
        """The number of a sample's first token."""
        return int(self._ends[self._first[group] + sample])

    def sampled(self, shape: tuple[int, ...]) -> list[list[bool]]:
        """For each of the P*S places of a table, the mask of sampled tokens; empty for a missing sample."""
        found: list[list[bool]] = [[] for _ in range(shape[0] * shape[1])]
        for g, group in enumerate(self.groups):
            for s, sample in enumerate(group.samples):
                found[g * shape[1] + s] = list(chain.from_iterable(piece.sampled for piece in sample.pieces))
        return found

    def apart(self, column: NDArray[np.float64], shape: tuple[int, ...]) -> list[NDArray[np.float64]]:
        """The column split into one array per place of a table."""
        found = [np.zeros(0) for _ in range(shape[0] * shape[1])]
        for g, group in enumerate(self.groups):
            for s in range(len(group.samples)):
                number = self._first[g] + s
                found[g * shape[1] + s] = column[self._ends[number] : self._ends[number + 1]]
        return found

    def together(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The column of all places of a table; missing samples have empty arrays."""
        return np.concatenate([np.zeros(0), *parts])

    def gathered(
        self, rows: Sequence[PackedRow], found: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.float64]:
        """A column of the step, from values of the rows' predictions."""
        column = np.zeros(self.count)
        for row, values in zip(rows, found, strict=True):
            column[_numbers(row)] = values
        return column

    def with_columns(
        self, rows: Sequence[PackedRow], known: Mapping[str, NDArray[np.float64]]
    ) -> list[PackedRow]:
        """The rows with columns in place of token numbers."""
        made = []
        for row in rows:
            numbers = _numbers(row)
            columns = {name: column for name, column in row.columns.items() if name != NUMBER}
            columns |= {name: column[numbers].astype(np.float32) for name, column in known.items()}
            made.append(replace(row, columns=columns))
        return made

    def advantages_by_sample(
        self, parts: Sequence[NDArray[np.float64]], taught: set[int]
    ) -> list[list[list[float]]]:
        """For each group and sample the advantages of its last segment's tokens; empty for a group that was not
        trained on.
        """
        most = len(parts) // max(len(self.groups), 1)
        return [
            [
                parts[g * most + s][-len(sample.token_ids) :].tolist()
                if g in taught and sample.token_ids
                else []
                for s, sample in enumerate(group.samples)
            ]
            for g, group in enumerate(self.groups)
        ]


def packed(
    tokens: StepTokens,
    share: Sequence[int],
    taught: Sequence[int],
    *,
    counts: Callable[[Rollout], bool],
    aggregate: Aggregate,
    longest: int,
    share_prefix: bool,
    budget: int,
    part: int = 0,
    parts: int = 1,
) -> list[PackedRow]:
    """The packed rows of the groups in `taught`, a subset of a mini-batch's `share`; or one of several `parts` of them.
    Token weights depend on all groups of the share. Samples for which `counts` is false are excluded. Segments with a
    common prompt share it.
    """
    samples = [sample for i in share for sample in tokens.groups[i].samples if counts(sample)]
    weights = iter(token_weights([sample.trained for sample in samples], aggregate, longest))
    items: list[Document | Tree] = []
    for i in share:
        trees: dict[tuple[int, ...], list[Document]] = {}
        for s, sample in enumerate(tokens.groups[i].samples):
            if not counts(sample):
                continue
            weight = next(weights)
            for piece, begin in _pieces(sample, tokens.begin(i, s)):
                prompt = tuple(piece.prompt_ids or tokens.groups[i].prompt_ids)
                trees.setdefault(prompt, []).append(_document(piece, begin, weight))
        if i in taught:
            for prompt, documents in trees.items():
                tree = Tree(list(prompt), documents)
                items += [tree] if share_prefix else tree.apart()
    return pack(balanced(items, parts)[part], budget)


def _pieces(sample: Rollout, begin: int) -> list[tuple[Rollout, int]]:
    """Each segment with the number of its first token."""
    found = []
    for piece in sample.pieces:
        found.append((piece, begin))
        begin += len(piece.token_ids)
    return found


def _document(piece: Rollout, begin: int, weight: float) -> Document:
    weights = [weight if own else 0.0 for own in piece.sampled]
    numbers = range(begin, begin + len(piece.token_ids))
    return Document(piece.token_ids, weights, {"sampler_logprobs": piece.logprobs, NUMBER: numbers})


def _numbers(row: PackedRow) -> NDArray[np.int64]:
    return row.columns[NUMBER].astype(np.int64)
