"""Packing of documents into flat rows: no padding, and no prediction across a document boundary.

A row has two halves. The input: `tokens`, their `positions`, and their segments (`cu_seqlens`). The predictions: for
each the input token that it is made from (`where`), its target (`targets`), its loss weight, and further columns
(advantages, the sampler's log-probabilities, ...). A document's predictions are contiguous, for sequence-level losses
(`documents`, `facts`). The separation means that only tokens with a loss pass through the model's head, and that
several answers share one copy of their prompt and of any other common prefix, across prompts too: a segment may
continue another one, its `parents` entry, from its own start position.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import InvalidRequest

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Document:
    """Tokens with loss weights. `weights[i]` and `columns[name][i]` belong to `tokens[i]`; weight 0 is context only."""

    tokens: Sequence[int]
    weights: Sequence[float]
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    """Facts about the whole document for the loss: the number of its record, whether it is the preferred answer."""


@dataclass(frozen=True)
class Tree:
    """One prefix (a prompt) and the documents that continue it (the answers). Without a prefix: one document."""

    prefix: Sequence[int]
    branches: Sequence[Document]

    def apart(self) -> list[Document]:
        """Each branch with the prefix before it, as context."""
        return [self._after_prefix(branch) for branch in self.branches]

    def _after_prefix(self, branch: Document) -> Document:
        zeros = [0.0] * len(self.prefix)
        columns = {name: [*zeros, *column] for name, column in branch.columns.items()}
        return Document([*self.prefix, *branch.tokens], [*zeros, *branch.weights], columns, branch.facts)


@dataclass(frozen=True)
class PackedRow:
    tokens: Ints
    positions: Ints
    cu_seqlens: list[int]
    parents: list[int]
    """For each segment the number of the one it continues, or -1. It attends to its parent's context, up to its own
    first position."""
    where: Ints
    targets: Ints
    weights: Floats
    columns: dict[str, Floats]
    documents: list[int]
    """Start of each document's predictions, and the end of the last one's."""
    facts: dict[str, Floats] = field(default_factory=dict)
    """One value a document."""

    @property
    def valid(self) -> int:
        """Number of predictions with a loss."""
        return int(np.count_nonzero(self.weights))


def plan_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Best-fit decreasing bin packing: indices of `lengths` for each row, no row above `budget`. Deterministic."""
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


def flat_row(tokens: Sequence[Ints], weights: Sequence[Floats]) -> PackedRow:
    """One row of documents without shared prefixes, vectorized."""
    sizes = [len(ids) - 1 for ids in tokens]
    starts = np.cumsum([0, *sizes])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    learned = np.concatenate([each[1:] for each in weights]).astype(np.float32)
    where = np.flatnonzero(learned)
    return PackedRow(
        tokens=np.concatenate([ids[:-1] for ids in tokens]).astype(np.int64),
        positions=positions,
        cu_seqlens=starts.tolist(),
        parents=[-1] * len(sizes),
        where=where,
        targets=np.concatenate([ids[1:] for ids in tokens]).astype(np.int64)[where],
        weights=learned[where],
        columns={},
        documents=[0, *np.cumsum([np.count_nonzero(each[1:]) for each in weights]).tolist()],
    )


def padded(row: PackedRow, multiple: int) -> PackedRow:
    """The row, padded to a multiple of `multiple` with one more document without predictions."""
    missing = -len(row.tokens) % multiple
    if not missing:
        return row
    return replace(
        row,
        tokens=np.concatenate([row.tokens, np.zeros(missing, np.int64)]),
        positions=np.concatenate([row.positions, np.arange(missing)]),
        cu_seqlens=[*row.cu_seqlens, len(row.tokens) + missing],
        parents=[*row.parents, -1],
    )


def pack(items: Iterable[Document | Tree], budget: int) -> list[PackedRow]:
    """Rows of at most `budget` tokens that contain every prediction of `items` with a weight, each exactly once."""
    trees = [part for item in items for part in _fit(_as_tree(item), budget)]
    grown = [_grow(tree) for tree in trees]
    plan = plan_rows([each.size for each in grown], budget)
    return [_row([grown[i] for i in row]) for row in plan]


def _as_tree(item: Document | Tree) -> Tree:
    return item if isinstance(item, Tree) else Tree((), (item,))


@dataclass(frozen=True)
class _Grown:
    """A tree with its branches in lexical order, each with the number of input tokens it shares with the previous
    one."""

    prefix: Sequence[int]
    branches: list[tuple[Document, Sequence[int], int]]
    size: int


def _grow(tree: Tree) -> _Grown:
    """Sorts the branches. The last token of a branch is a target only, so it is not an input."""
    ordered = sorted(((branch.tokens[:-1], i) for i, branch in enumerate(tree.branches)))
    branches: list[tuple[Document, Sequence[int], int]] = []
    size, last = len(tree.prefix), list[int]()
    for inputs, i in ordered:
        shared = _common(last, inputs) if tree.prefix else 0
        branches.append((tree.branches[i], inputs, shared))
        size += len(inputs) - shared
        last = list(inputs)
    return _Grown(tree.prefix, branches, size)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two sequences."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _fit(tree: Tree, budget: int) -> list[Tree]:
    """Splits a tree too large for one row into several with the same prefix."""
    if len(tree.branches) <= 1 or _grow(tree).size <= budget:
        return [tree]
    room = budget - len(tree.prefix)
    lengths = [max(len(branch.tokens) - 1, 0) for branch in tree.branches]
    if room <= 0:
        raise InvalidRequest(
            f"a prompt of {len(tree.prefix)} tokens does not fit into tokens_per_microbatch={budget}",
            param="tokens_per_microbatch",
        )
    return [Tree(tree.prefix, [tree.branches[i] for i in group]) for group in plan_rows(lengths, room)]


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
        self.documents = [0]
        self.facts: dict[str, list[float]] = {}

    def segment(self, tokens: Sequence[int], parent: int, start: int) -> int:
        """Adds a segment whose first token has position `start`; returns its number."""
        self.tokens.extend(tokens)
        self.positions.extend(range(start, start + len(tokens)))
        self.cu_seqlens.append(len(self.tokens))
        self.parents.append(parent)
        return len(self.parents) - 1

    def predict(self, where: Sequence[int], branch: Document, first: int) -> None:
        """Adds predictions of branch.tokens[first:] from the input tokens `where`."""
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
        for name in self.facts.keys() | branch.facts.keys():
            facts = self.facts.setdefault(name, [0.0] * (len(self.documents) - 1))
            facts.append(branch.facts.get(name, 0.0))
        self.documents.append(len(self.where))


def _row(trees: Sequence[_Grown]) -> PackedRow:
    out = _Builder()
    prompts = _Path(out)
    for tree in sorted(trees, key=lambda tree: list(tree.prefix)):
        if tree.prefix:
            prompts.follow(tree.prefix, _common(prompts.tokens, tree.prefix))
            _add_branches(out, tree, prompts)
        else:
            for branch, inputs, _ in tree.branches:
                begin = len(out.tokens)
                if inputs:
                    out.segment(inputs, -1, 0)
                    out.predict(range(begin, begin + len(inputs)), branch, 1)
    return PackedRow(
        tokens=np.asarray(out.tokens, np.int64),
        positions=np.asarray(out.positions, np.int64),
        cu_seqlens=out.cu_seqlens,
        parents=out.parents,
        where=np.asarray(out.where, np.int64),
        targets=np.asarray(out.targets, np.int64),
        weights=np.asarray(out.weights, np.float32),
        columns={name: np.asarray(column, np.float32) for name, column in out.columns.items()},
        documents=out.documents,
        facts={name: np.asarray(facts, np.float32) for name, facts in out.facts.items()},
    )


class _Path:
    """The path from a root to a token of the row: for each token its index in the row, and its segment."""

    def __init__(self, out: _Builder, begin: _Path | None = None) -> None:
        self.out = out
        self.tokens: list[int] = list(begin.tokens) if begin else []
        self.at: list[int] = list(begin.at) if begin else []
        self.owner: list[int] = list(begin.owner) if begin else []

    def follow(self, tokens: Sequence[int], shared: int) -> None:
        """Changes this to the path of `tokens`, whose first `shared` tokens it has already."""
        del self.tokens[shared:], self.at[shared:], self.owner[shared:]
        new = tokens[shared:]
        if new:
            begin = len(self.out.tokens)
            segment = self.out.segment(new, self.owner[-1] if self.owner else -1, shared)
            self.tokens += new
            self.at += range(begin, begin + len(new))
            self.owner += [segment] * len(new)


def _add_branches(out: _Builder, tree: _Grown, prompt: _Path) -> None:
    path, start = _Path(out, prompt), len(tree.prefix)
    for branch, inputs, shared in tree.branches:
        path.follow([*tree.prefix, *inputs], start + shared)
        if branch.tokens:
            out.predict(path.at[start - 1 :], branch, 0)
