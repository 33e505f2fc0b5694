"""Attention over a row in which many answers continue one prompt, and one another, without computing it twice.

A group of S samples over a prompt of P tokens costs P + S*R instead of S*(P + R), and less where answers begin alike.
Only the attention sees the difference: each segment attends to the keys of what it continues and to its own,
causally; gradients of shared keys add up.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rondo.ops import AttentionSpec

Ints = NDArray[np.int64]


def shares_prefixes(specs: Sequence[AttentionSpec]) -> bool:
    """Whether `SharedPrefix` can stand in for packed attention in a model with these layers."""
    return all(spec.softcap is None and not spec.sinks for spec in specs)


class SharedPrefix:
    """Segment i sees the first `positions[i]` tokens of what segment `parents[i]` sees and is; -1 sees itself alone."""

    def __init__(
        self,
        cu_seqlens: Sequence[int],
        parents: Sequence[int],
        positions: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self._sizes = np.diff(cu_seqlens)
        self._parents = list(parents)
        self._device = device
        starts = np.asarray(cu_seqlens[:-1])
        contexts = _contexts(cu_seqlens, parents, positions)
        self._parts = [
            _Padded(starts[chosen], self._sizes[chosen], [contexts[i] for i in chosen], device)
            for chosen in _alike(parents, self._sizes.tolist())
        ]
        order = np.concatenate([part.order for part in self._parts])
        self._back = torch.from_numpy(np.argsort(order)).to(device)
        self._ends = [len(context) + int(size) for context, size in zip(contexts, self._sizes, strict=True)]

    @property
    def lengths(self) -> Tensor:
        """A token counts as part of the longest answer that continues it."""
        longest = list(self._ends)
        for i in reversed(range(len(longest))):
            parent = self._parents[i]
            if parent >= 0:
                longest[parent] = max(longest[parent], longest[i])
        return torch.from_numpy(np.repeat(longest, self._sizes)).to(self._device)

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        assert spec.softcap is None, "ask shares_prefixes() first"
        assert sinks is None, "ask shares_prefixes() first"
        outputs = [part.attend(spec, q, k, v) for part in self._parts]
        return torch.cat(outputs)[self._back] if len(outputs) > 1 else outputs[0][self._back]


def _alike(parents: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Segments that are padded together: of nearly one length, and all with a context or all without."""
    groups: dict[tuple[bool, int], list[int]] = {}
    for i, (parent, size) in enumerate(zip(parents, sizes, strict=True)):
        groups.setdefault((parent >= 0, (size - 1).bit_length()), []).append(i)
    return list(groups.values())


def _contexts(cu_seqlens: Sequence[int], parents: Sequence[int], positions: Sequence[int]) -> list[list[int]]:
    """For each segment the rows of the tokens before it. A parent comes before its children."""
    contexts: list[list[int]] = []
    for parent, start in zip(parents, positions, strict=True):
        if parent < 0:
            contexts.append([])
        else:
            path = [*contexts[parent], *range(cu_seqlens[parent], cu_seqlens[parent + 1])]
            contexts.append(path[:start])
    return contexts


class _Padded:
    """Segments padded to one length, beside the keys of what they continue and their own."""

    def __init__(
        self, starts: Ints, sizes: Ints, contexts: Sequence[Sequence[int]], device: torch.device | str
    ) -> None:
        before = np.array([len(context) for context in contexts])
        queries, prefix = int(sizes.max()), int(before.max())
        self.shape = (len(starts), queries)
        own, ahead = np.arange(queries), np.arange(prefix)
        rows = starts[:, None] + np.minimum(own, sizes[:, None] - 1)
        real = own < sizes[:, None]
        context_rows = np.zeros((len(starts), prefix), np.int64)
        context_rows[ahead < before[:, None]] = np.fromiter(itertools.chain.from_iterable(contexts), np.int64)
        visible = np.empty((len(starts), queries, prefix + queries), bool)
        visible[:, :, :prefix] = (ahead < before[:, None])[:, None]
        visible[:, :, prefix:] = own[:, None] >= own
        self.order = rows[real]
        self.rows = torch.from_numpy(rows.ravel()).to(device)
        self.keys = torch.from_numpy(np.concatenate([context_rows, rows], 1).ravel()).to(device)
        self.real = torch.from_numpy(np.flatnonzero(real)).to(device)
        self.visible = torch.from_numpy(visible).to(device)
        self.before = torch.from_numpy(before).to(device)
        self.longest = int((sizes + before).max())
        self.causal = prefix == 0

    def mask(self, window: int | None) -> Tensor | None:
        """[B, 1, Q, K] or None, where plain causal attention does."""
        if window is None or self.longest <= window:
            return None if self.causal else self.visible[:, None]
        _, queries, keys = self.visible.shape
        prefix = keys - queries
        own, ahead = (torch.arange(n, device=self.visible.device) for n in (queries, prefix))
        # how far back each key is: a context's last token is one before the segment's first
        far = self.before[:, None, None] + own[:, None] - ahead
        near = (own[:, None] - own).expand(len(far), -1, -1)
        return (self.visible & (torch.cat([far, near], -1) < window))[:, None]

    def attend(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """-> [sum of the segments' lengths, H, Dv], in the order of `self.order`."""
        queries = self._take(q, self.rows)
        keys, values = self._take(k, self.keys), self._take(v, self.keys)
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
        return out.transpose(1, 2).flatten(0, 1)[self.real]

    def _take(self, x: Tensor, rows: Tensor) -> Tensor:
        """x [T, H, D] -> [B, H, L, D], as an embedding: its backward adds repeated rows fast and in order."""
        taken = F.embedding(rows, x.flatten(1))
        return taken.view(self.shape[0], -1, *x.shape[1:]).transpose(1, 2)
