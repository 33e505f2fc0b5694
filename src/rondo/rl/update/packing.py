"""A step's samples as rows, and back: what is known of a token is found again wherever packing has put it.

The tokens of all samples of a step are numbered, in order. A row remembers the number of each token that it predicts,
so that columns can be filled in once the rows are there and models were asked about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import ConfigError
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.rl.algorithms import Aggregate
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.update.advantages import token_weights

Known = dict[str, NDArray[np.float64]]
"""Columns by name: a number for each token of the step."""
NUMBER = "number"
"""The column of tokens' numbers while rows are made."""
MOST_TOKENS = 2**24
"""A column is of 32-bit floats, which tell so many whole numbers apart."""


class StepTokens:
    def __init__(self, groups: Sequence[SampleGroup]) -> None:
        self.groups = groups
        samples = [sample for group in groups for sample in group.samples]
        self._sizes = [sum(len(piece.token_ids) for piece in sample.pieces) for sample in samples]
        self._ends = np.cumsum([0, *self._sizes]).tolist()
        self._first = np.cumsum([0, *(len(group.samples) for group in groups)]).tolist()
        """The number of each group's first sample."""
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
        """The number of the first token of a sample."""
        return int(self._ends[self._first[group] + sample])

    def sampled(self, shape: tuple[int, ...]) -> list[list[bool]]:
        """For each of the P*S places of a table whether its tokens were sampled; a place without a sample has none."""
        found: list[list[bool]] = [[] for _ in range(shape[0] * shape[1])]
        for g, group in enumerate(self.groups):
            for s, sample in enumerate(group.samples):
                found[g * shape[1] + s] = list(chain.from_iterable(piece.sampled for piece in sample.pieces))
        return found

    def apart(self, column: NDArray[np.float64], shape: tuple[int, ...]) -> list[NDArray[np.float64]]:
        """One array for each place of a table."""
        found = [np.zeros(0) for _ in range(shape[0] * shape[1])]
        for g, group in enumerate(self.groups):
            for s in range(len(group.samples)):
                number = self._first[g] + s
                found[g * shape[1] + s] = column[self._ends[number] : self._ends[number + 1]]
        return found

    def together(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Of the places of a table: those without a sample are empty."""
        return np.concatenate([np.zeros(0), *parts])

    def gathered(
        self, rows: Sequence[PackedRow], found: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.float64]:
        """What was said of the predictions of rows, by the numbers of their tokens."""
        column = np.zeros(self.count)
        for row, values in zip(rows, found, strict=True):
            column[_numbers(row)] = values
        return column

    def with_columns(
        self, rows: Sequence[PackedRow], known: Mapping[str, NDArray[np.float64]]
    ) -> list[PackedRow]:
        """The rows with what is known of their tokens, in place of their numbers."""
        made = []
        for row in rows:
            numbers = _numbers(row)
            columns = {name: column for name, column in row.columns.items() if name != NUMBER}
            columns |= {name: column[numbers].astype(np.float32) for name, column in known.items()}
            made.append(replace(row, columns=columns))
        return made

    def told(self, parts: Sequence[NDArray[np.float64]], taught: set[int]) -> list[list[list[float]]]:
        """For each group and sample what its last piece's tokens were given; nothing where the group taught nothing."""
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
) -> list[PackedRow]:
    """The rows of those groups of a mini-batch's `share` that are `taught`; the weight of a token depends on all
    groups. Samples for which `counts` is false are left out. Pieces that begin with one prompt share it."""
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
    return pack(items, budget)


def _pieces(sample: Rollout, begin: int) -> list[tuple[Rollout, int]]:
    """Each with the number of its first token."""
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
