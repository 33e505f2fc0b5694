"""Attention over a row in which many answers continue one prompt, which is computed once.

A group of S samples over a prompt of P tokens costs P + S*R instead of S*(P + R). Only the attention sees the
difference: each answer attends to its prompt's keys and to its own, causally; gradients of the prompt's keys add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops import AttentionSpec


def shares_prefixes(specs: Sequence[AttentionSpec]) -> bool:
    """Whether `SharedPrefix` can stand in for packed attention in a model with these layers."""
    return all(spec.softcap is None and not spec.sinks for spec in specs)


class SharedPrefix:
    """`parents[i]` is the segment that segment i continues, or -1; a parent continues nothing itself."""

    def __init__(
        self, cu_seqlens: Sequence[int], parents: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        starts, ends = np.asarray(cu_seqlens[:-1]), np.asarray(cu_seqlens[1:])
        parent = np.asarray(parents)
        sizes = ends - starts
        before = np.where(parent >= 0, sizes[parent], 0)
        self._parts = [
            _Padded(
                starts[chosen],
                sizes[chosen],
                np.where(before[chosen] > 0, starts[parent[chosen]], 0),
                before[chosen],
                device,
            )
            for chosen in (np.flatnonzero(parent < 0), np.flatnonzero(parent >= 0))
            if len(chosen)
        ]
        order = np.concatenate([part.order for part in self._parts])
        self._back = torch.from_numpy(np.argsort(order)).to(device)
        longest = before + sizes
        np.maximum.at(longest, parent[parent >= 0], longest[parent >= 0])
        self._lengths = torch.from_numpy(np.repeat(longest, sizes)).to(device)

    @property
    def lengths(self) -> Tensor:
        """A prompt counts as long as its longest answer."""
        return self._lengths

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        assert spec.softcap is None, "ask shares_prefixes() first"
        assert sinks is None, "ask shares_prefixes() first"
        outputs = [part.attend(spec, q, k, v) for part in self._parts]
        return torch.cat(outputs)[self._back] if len(outputs) > 1 else outputs[0][self._back]


class _Padded:
    """Segments padded to one length, beside keys of their prefix and their own."""

    def __init__(
        self,
        starts: np.ndarray,
        sizes: np.ndarray,
        prefix_starts: np.ndarray,
        prefix_sizes: np.ndarray,
        device: torch.device | str,
    ) -> None:
        queries, prefix = int(sizes.max()), int(prefix_sizes.max())
        self.shape = (len(starts), queries)
        own = np.arange(queries)
        rows = starts[:, None] + np.minimum(own, sizes[:, None] - 1)
        real = own < sizes[:, None]
        before = np.arange(prefix)
        prefix_rows = prefix_starts[:, None] + np.minimum(before, np.maximum(prefix_sizes[:, None] - 1, 0))
        # distance from query to key, for windows: the prefix's last token is one before the first own one
        distance = np.concatenate(
            [
                own[None, :, None] + prefix_sizes[:, None, None] - before,
                np.broadcast_to((own[:, None] - own)[None], (len(starts), queries, queries)),
            ],
            -1,
        )
        visible = np.concatenate(
            [
                np.broadcast_to((before < prefix_sizes[:, None])[:, None], (len(starts), queries, prefix)),
                np.broadcast_to((own[:, None] >= own)[None], (len(starts), queries, queries)),
            ],
            -1,
        )
        self.order = rows[real]
        self.rows = torch.from_numpy(rows.ravel()).to(device)
        self.keys = torch.from_numpy(np.concatenate([prefix_rows, rows], 1).ravel()).to(device)
        self.real = torch.from_numpy(np.flatnonzero(real)).to(device)
        self.visible = torch.from_numpy(visible).to(device)
        self.distance = torch.from_numpy(np.ascontiguousarray(distance)).to(device)
        self.longest = int((sizes + prefix_sizes).max())
        self.causal = prefix == 0

    def attend(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """-> [sum of the segments' lengths, H, Dv], in the order of `self.order`."""
        queries = self._take(q, self.rows)
        keys, values = self._take(k, self.keys), self._take(v, self.keys)
        if spec.window is not None and self.longest > spec.window:
            mask: Tensor | None = (self.visible & (self.distance < spec.window))[:, None]
        else:
            mask = None if self.causal else self.visible[:, None]
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
