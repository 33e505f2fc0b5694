"""Balanced division of documents among data-parallel ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rondo.data.batching.packing import Document, Tree

Item = Document | Tree


def balanced(items: Sequence[Item], parts: int) -> list[list[Item]]:
    """The items, divided into `parts` of similar numbers of tokens, each in the given order. A tree with more than a
    part's share of the tokens is split, if it has several branches; its prefix is then in several parts. Deterministic.
    """
    if parts == 1:
        return [list(items)]
    pieces = _split(list(items), parts)
    found: list[list[int]] = [[] for _ in range(parts)]
    for i, part in enumerate(deal([size_of(piece) for piece in pieces], parts)):
        found[part].append(i)
    return [[pieces[i] for i in part] for part in found]


def deal(sizes: Sequence[int], parts: int) -> list[int]:
    """Part of each size: the largest remaining one is added to the part with the smallest sum."""
    loads = [(0, part) for part in range(parts)]
    found = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, part = heapq.heappop(loads)
        found[i] = part
        heapq.heappush(loads, (load + sizes[i], part))
    return found


def size_of(item: Item) -> int:
    """Input tokens of an item, with its prefix once."""
    if isinstance(item, Document):
        return len(item.tokens)
    return len(item.prefix) + sum(len(branch.tokens) for branch in item.branches)


def _split(items: list[Item], parts: int) -> list[Item]:
    """Splits trees until none has more tokens than a part's share of all."""
    share = max(1, -(-sum(map(size_of, items)) // parts))
    found: list[Item] = []
    for item in items:
        count = min(-(-size_of(item) // share), len(item.branches)) if isinstance(item, Tree) else 1
        if count <= 1:
            found.append(item)
            continue
        assert isinstance(item, Tree)
        groups = deal([len(branch.tokens) for branch in item.branches], count)
        for group in range(count):
            own = [branch for branch, of in zip(item.branches, groups, strict=True) if of == group]
            found.append(Tree(item.prefix, own))
    return found
