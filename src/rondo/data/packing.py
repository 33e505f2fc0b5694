"""Documents into flat rows: no padding, no token predicted across a document's edge.

A row has two halves. What goes in: `tokens`, their `positions`, and the segments they form (`cu_seqlens`). What is
predicted: for each prediction the input token it is made from (`where`), the token it should be (`targets`), its
weight in the loss, and further columns (advantages, the sampler's log-probabilities, ...). Keeping the halves apart
means that only tokens somebody learns from pass through the model's head, and that many answers to one prompt can
share a single copy of it: a segment may continue another one, its `parents` entry.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import InvalidRequest

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Document:
    """Tokens to learn from. `weights[i]` and `columns[name][i]` speak of `tokens[i]`; weight 0 is context only."""

    tokens: Sequence[int]
    weights: Sequence[float]
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    """One prefix (a prompt) and the documents that continue it (the answers). Without a prefix: one document."""

    prefix: Sequence[int]
    branches: Sequence[Document]


@dataclass(frozen=True)
class Row:
    tokens: Ints
    positions: Ints
    cu_seqlens: list[int]
    parents: list[int]
    """For each segment the segment it continues, or -1."""
    where: Ints
    targets: Ints
    weights: Floats
    columns: dict[str, Floats]

    @property
    def valid(self) -> int:
        """How many predictions count in the loss."""
        return int(np.count_nonzero(self.weights))


def plan_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Best-fit decreasing: indices of `lengths` for each row, no row above `budget`. Equal input, equal output."""
    free: list[tuple[int, int]] = []  # (space left, row), ascending
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = lengths[index]
        if size > budget:
            raise InvalidRequest(
                f"a document of {size} tokens does not fit into tokens_per_microbatch={budget}: "
                "raise it, or cut the document",
                param="tokens_per_microbatch",
            )
        slot = bisect_left(free, (size, -1))
        if slot == len(free):
            rows.append([index])
            insort(free, (budget - size, len(rows) - 1))
        else:
            space, row = free.pop(slot)
            rows[row].append(index)
            insort(free, (space - size, row))
    return [sorted(row) for row in rows]


def pack(items: Iterable[Document | Tree], budget: int) -> list[Row]:
    """Rows of at most `budget` tokens that hold every prediction of `items` with a weight, each exactly once."""
    trees = [part for item in items for part in _fit(_as_tree(item), budget)]
    plan = plan_rows([_size(tree) for tree in trees], budget)
    return [_row([trees[i] for i in row]) for row in plan]


def _as_tree(item: Document | Tree) -> Tree:
    return item if isinstance(item, Tree) else Tree((), (item,))


def _branch_inputs(tree: Tree, branch: Document) -> int:
    """The last token of a branch is only ever predicted, so it is no input."""
    return max(len(branch.tokens) - 1, 0)


def _size(tree: Tree) -> int:
    return len(tree.prefix) + sum(_branch_inputs(tree, b) for b in tree.branches)


def _fit(tree: Tree, budget: int) -> list[Tree]:
    """A tree too large for one row becomes several with the same prefix."""
    if _size(tree) <= budget or len(tree.branches) <= 1:
        return [tree]
    room = budget - len(tree.prefix)
    groups = plan_rows([_branch_inputs(tree, b) for b in tree.branches], room) if room > 0 else []
    if not groups:
        raise InvalidRequest(
            f"a prompt of {len(tree.prefix)} tokens does not fit into tokens_per_microbatch={budget}",
            param="tokens_per_microbatch",
        )
    return [Tree(tree.prefix, [tree.branches[i] for i in group]) for group in groups]


class _Builder:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.cu_seqlens = [0]
        self.parents: list[int] = []
        self.where: list[int] = []
        self.targets: list[int] = []
        self.weights: list[float] = []
        self.columns: dict[str, list[float]] = {}

    def segment(self, tokens: Sequence[int], parent: int, start: int) -> int:
        """Adds a segment whose first token has position `start`; returns its number."""
        self.tokens.extend(tokens)
        self.positions.extend(range(start, start + len(tokens)))
        self.cu_seqlens.append(len(self.tokens))
        self.parents.append(parent)
        return len(self.parents) - 1

    def predict(self, where: Sequence[int], branch: Document, first: int) -> None:
        """Predicts branch.tokens[first:] from the input tokens `where`."""
        weights = branch.weights[first:]
        names = self.columns.keys() | branch.columns.keys()
        seen = len(self.weights)
        if all(weights):
            keep: Sequence[int] = range(len(weights))
            self.where.extend(where)
            self.targets.extend(branch.tokens[first:])
            self.weights.extend(weights)
        else:
            keep = [i for i, weight in enumerate(weights) if weight]
            self.where.extend(where[i] for i in keep)
            self.targets.extend(branch.tokens[first + i] for i in keep)
            self.weights.extend(weights[i] for i in keep)
        for name in names:
            column = self.columns.setdefault(name, [0.0] * seen)
            source = branch.columns.get(name)
            column.extend([0.0] * len(keep) if source is None else [source[first + i] for i in keep])


def _row(trees: Sequence[Tree]) -> Row:
    out = _Builder()
    for tree in trees:
        parent, last = -1, -1
        if tree.prefix:
            parent = out.segment(tree.prefix, -1, 0)
            last = len(out.tokens) - 1
        for branch in tree.branches:
            inputs = branch.tokens[:-1]
            if tree.prefix:
                begin = len(out.tokens)
                if inputs:
                    out.segment(inputs, parent, len(tree.prefix))
                if branch.tokens:
                    out.predict([last, *range(begin, begin + len(inputs))], branch, 0)
            elif inputs:
                begin = len(out.tokens)
                out.segment(inputs, -1, 0)
                out.predict(range(begin, begin + len(inputs)), branch, 1)
    return Row(
        tokens=np.asarray(out.tokens, np.int64),
        positions=np.asarray(out.positions, np.int64),
        cu_seqlens=out.cu_seqlens,
        parents=out.parents,
        where=np.asarray(out.where, np.int64),
        targets=np.asarray(out.targets, np.int64),
        weights=np.asarray(out.weights, np.float32),
        columns={name: np.asarray(column, np.float32) for name, column in out.columns.items()},
    )
