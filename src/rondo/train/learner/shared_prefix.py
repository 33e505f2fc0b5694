"""Attention over a row in which many answers continue one prompt, and one another, without repeated computation.

A group of S samples over a prompt of P tokens costs P + S*R instead of S*(P + R), and less if answers begin alike. Only
the attention differs: each segment attends causally to the keys of its prefix and to its own; gradients of shared keys
are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rondo.ops import AttentionSpec
from rondo.ops.dispatch import references_only
from rondo.ops.native.attention.attend import Pasts, can_attend
from rondo.ops.native.attention.packed import attend_rows

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

Ints = NDArray[np.int64]

SMALL = 64
"""Number of tokens up to which adjacent segments in the tree attend together: masked scores cost less than many small
products.
"""

FEW = 31
"""Lengths up to this one count as equal."""

NEVER = 1 << 40
"""Position of padding, after all tokens."""


def shares_prefixes(specs: Sequence[AttentionSpec], mesh: Mesh | None = None) -> bool:
    """Whether `SharedPrefix` can replace packed attention in a model with these layers, on these ranks."""
    if mesh is not None and mesh.degrees.cp > 1 and mesh.degrees.config.cp_method == "ring":
        return False
    return all(spec.softcap is None and not spec.sinks for spec in specs)


class SharedPrefix:
    """Segment i attends to itself and to the first `positions[i]` tokens of the sequence that ends with segment
    `parents[i]`, or only to itself if the parent is -1.
    """

    def __init__(
        self,
        cu_seqlens: Sequence[int],
        parents: Sequence[int],
        positions: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self._tree = tree = _Tree(np.asarray(cu_seqlens), parents, positions)
        self._device = device
        groups: dict[tuple[bool, int, int], list[_Group]] = {}
        for group in tree.groups():
            groups.setdefault(group.shape, []).append(group)
        self._parts = [_Padded(alike, device) for alike in groups.values()]
        order = np.concatenate([part.order for part in self._parts])
        self._back = torch.from_numpy(np.argsort(order)).to(device)
        self._pasts = tree.pasts() if torch.device(device).type == "cpu" else None

    @property
    def lengths(self) -> Tensor:
        """Lengths of sequences. A token belongs to the longest answer that continues it."""
        tree = self._tree
        longest = [start + size for start, size in zip(tree.positions, tree.sizes, strict=True)]
        for i, parent in reversed(list(enumerate(tree.parents))):
            if parent >= 0:
                longest[parent] = max(longest[parent], longest[i])
        return torch.from_numpy(np.repeat(longest, tree.sizes)).to(self._device)

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        assert spec.softcap is None, "ask shares_prefixes() first"
        assert sinks is None, "ask shares_prefixes() first"
        if self._pasts is not None and not references_only() and can_attend(q, k, v):
            return attend_rows(spec, q, k, v, None, self._pasts, self._parts, partial(self._padded, spec))
        return self._padded(spec, q, k, v, None)

    def _padded(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        outputs = [part.attend(spec, q, k, v) for part in self._parts]
        return F.embedding(self._back, torch.cat(outputs).flatten(1)).view(*q.shape[:2], -1)


@dataclass(frozen=True)
class _Group:
    """Segments that attend together: the rows of their common context, and their own rows. `sees[i, j]` is whether own
    token i attends to token j of both, and `at` are the positions of both in their sequences.
    """

    context: Ints
    own: Ints
    sees: NDArray[np.bool_]
    at: Ints
    causal: bool

    @property
    def shape(self) -> tuple[bool, int, int]:
        """Groups of one shape may be padded to one length: except for small groups, padding less than doubles the
        length.
        """
        own, context = len(self.own) - 1, len(self.context)
        return self.causal, max(own, FEW).bit_length(), max(context, FEW).bit_length()


class _Tree:
    """Segments and their prefixes. A parent precedes its children."""

    def __init__(self, starts: Ints, parents: Sequence[int], positions: Sequence[int]) -> None:
        self.starts, self.parents, self.positions = starts, parents, positions
        self.sizes: list[int] = np.diff(starts).tolist()

    def groups(self) -> list[_Group]:
        """Groups small subtrees, and small siblings together; a larger segment with descendants is alone."""
        totals = list(self.sizes)
        for i, parent in reversed(list(enumerate(self.parents))):
            if parent >= 0:
                totals[parent] += totals[i]
        group_of: list[int] = []
        members: list[list[int]] = []
        open_below: dict[int, tuple[int, int]] = {}  # parent -> (its children's last group, tokens in it)
        for i, parent in enumerate(self.parents):
            if parent >= 0 and totals[parent] <= SMALL:
                group = group_of[parent]
            else:
                group, tokens = open_below.get(parent, (-1, SMALL))
                if parent < 0 or tokens + totals[i] > SMALL:
                    group, tokens = len(members), 0
                    members.append([])
                open_below[parent] = group, tokens + totals[i]
            members[group].append(i)
            group_of.append(group)
        paths: dict[int, Ints] = {-1: np.empty(0, np.int64)}
        return [self._group(segments, paths) for segments in members]

    def pasts(self) -> Pasts:
        """KV tables for the CPU kernel: each segment's sequence is a table of rows, and the tables are concatenated."""
        paths: dict[int, Ints] = {-1: np.empty(0, np.int64)}
        own = [self._path(i, paths) for i in range(len(self.sizes))]
        starts = np.cumsum([0, *(len(path) for path in own[:-1])])
        seen = np.concatenate(
            [at + np.arange(1, n + 1) for at, n in zip(self.positions, self.sizes, strict=True)]
        )
        owners = np.repeat(starts, self.sizes)
        table = torch.from_numpy(np.concatenate(own))[:, None]
        return Pasts(table, torch.from_numpy(owners), torch.from_numpy(seen), int(seen.sum()))

    def _path(self, segment: int, paths: dict[int, Ints]) -> Ints:
        """Rows of a segment's sequence: its prefix and itself."""
        if segment not in paths:
            before = self._path(self.parents[segment], paths)[: self.positions[segment]]
            paths[segment] = np.concatenate([before, self._rows(segment)])
        return paths[segment]

    def _rows(self, segment: int) -> Ints:
        return np.arange(self.starts[segment], self.starts[segment + 1])

    def _group(self, segments: list[int], paths: dict[int, Ints]) -> _Group:
        context = self._path(self.parents[segments[0]], paths)
        before, total = len(context), sum(self.sizes[i] for i in segments)
        at = np.concatenate(
            [np.arange(before), *(self.positions[i] + np.arange(self.sizes[i]) for i in segments)]
        )
        if len(segments) == 1 and not before:
            return _Group(context, self._rows(segments[0]), np.empty((0, 0), bool), at, True)
        sees = np.zeros((total, before + total), bool)
        sees_last: dict[int, NDArray[np.bool_]] = {}
        first = 0
        for i in segments:
            last = first + self.sizes[i]
            above = sees_last.get(self.parents[i])
            if above is None:
                above = np.zeros(before + total, bool)
                above[:before] = True
            sees[first:last] = above & (at < self.positions[i])
            sees[first:last, before + first : before + last] = np.tri(last - first, dtype=bool)
            sees_last[i] = sees[last - 1]
            first = last
        return _Group(context, np.concatenate([self._rows(i) for i in segments]), sees, at, False)


class _Padded:
    """Groups padded to one length. Padding queries attend to the first key, to avoid NaN; no token attends to padding
    keys.
    """

    def __init__(self, groups: Sequence[_Group], device: torch.device | str) -> None:
        queries = max(len(group.own) for group in groups)
        keys = max(len(group.at) for group in groups)
        rows, columns = np.zeros((len(groups), queries), np.int64), np.zeros((len(groups), keys), np.int64)
        row_at, column_at = np.zeros_like(rows), np.full_like(columns, NEVER)
        real = np.zeros(rows.shape, bool)
        self.causal = groups[0].causal
        visible = np.zeros((0, 0, 0) if self.causal else (len(groups), queries, keys), bool)
        for i, group in enumerate(groups):
            own, both = len(group.own), len(group.at)
            rows[i, :own], row_at[i, :own], real[i, :own] = group.own, group.at[both - own :], True
            columns[i, :both], column_at[i, :both] = np.concatenate([group.context, group.own]), group.at
            if not self.causal:
                visible[i, :own, :both] = group.sees
                visible[i, own:, 0] = True
        self.order = rows[real]
        self.batch = len(groups)
        self.longest = int(row_at.max()) + 1
        self.rows, self.columns, self.real, self.row_at, self.column_at, self.visible = (
            torch.from_numpy(x).to(device)
            for x in (rows.ravel(), columns.ravel(), np.flatnonzero(real), row_at, column_at, visible)
        )

    def mask(self, window: int | None) -> Tensor | None:
        """Mask [B, 1, Q, K], or None if plain causal attention suffices."""
        if window is None or self.longest <= window:
            return None if self.causal else self.visible[:, None]
        back = self.row_at[:, :, None] - self.column_at[:, None]
        seen = (back >= 0) if self.causal else self.visible
        return (seen & (back < window))[:, None]

    def attend(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the groups: [sum of the groups' own tokens, H, Dv], in the order of `self.order`."""
        queries = self._take(q, self.rows)
        keys, values = self._take(k, self.columns), self._take(v, self.columns)
        mask = self.mask(spec.window)
        out = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=spec.scale,
            enable_gqa=spec.num_heads != spec.num_kv_heads,
        )
        return F.embedding(self.real, out.transpose(1, 2).flatten(0, 1).flatten(1)).view(-1, *out.shape[1::2])

    def _take(self, x: Tensor, rows: Tensor) -> Tensor:
        """x [T, H, D] -> [B, H, L, D], as an embedding lookup: its backward pass adds repeated rows fast and in a fixed
        order.
        """
        taken = F.embedding(rows, x.flatten(1))
        return taken.view(self.batch, -1, *x.shape[1:]).transpose(1, 2)
