"""Attention of a serving step over the paged KV cache: new keys and values are written to their slots, and each token
attends to its own request's past.

Built once per step and used by every layer. The row of tokens starts with the decodes (one token per request, plus its
draft tokens), followed by whole prompts without a past, and last by chunks of prompts with a past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.kv.cache import KVCache, LayerCache
from rondo.ops import AttentionSpec, Chunks, DecodeStep, chunk_attention, packed_attention, paged_decode
from rondo.ops.attention.paged import additive, padded_attention, slots_at
from rondo.ops.native.attention.attend import Pasts, attend

Ints = NDArray[np.int64]

MAX_GATHERED = 1 << 14
"""Maximum number of gathered positions of chunks that attend together, to bound the size of the copies."""


@dataclass(frozen=True)
class AttentionSegment:
    """A chunk of a prompt: `count` tokens from row `start` on, after `past` tokens already stored in `blocks`."""

    start: int
    count: int
    past: int
    blocks: Ints

    @property
    def shape(self) -> tuple[int, int]:
        """Size class of the chunk: chunks of one class are padded to one length, at most twice their own."""
        return piece_shape(self.past, self.count)


def piece_shape(past: int, count: int) -> tuple[int, int]:
    return (count - 1).bit_length(), (past + count - 1).bit_length()


class AttentionSegments:
    """Chunks next to each other in the row that attend together, padded to one length."""

    def __init__(self, pieces: Sequence[AttentionSegment], block_size: int, device: torch.device) -> None:
        starts, counts, pasts = (
            np.array([getattr(piece, name) for piece in pieces]) for name in ("start", "count", "past")
        )
        own = np.arange(counts.max())
        tables = np.zeros((len(pieces), max(len(piece.blocks) for piece in pieces)), dtype=np.int64)
        for row, piece in zip(tables, pieces, strict=True):
            row[: len(piece.blocks)] = piece.blocks
        self.start, self.stop = int(starts[0]), int(starts[-1] + counts[-1])
        rows = starts[:, None] - self.start + np.minimum(own, counts[:, None] - 1)
        self._shape = rows.shape
        self._rows, self._real, self._at = (
            torch.from_numpy(x).to(device)
            for x in (rows.ravel(), np.flatnonzero(own < counts[:, None]), pasts[:, None] + own)
        )
        self._keys = torch.arange(tables.shape[1] * block_size, device=device)
        slots = slots_at(torch.from_numpy(tables).to(device), self._keys, block_size)
        # Positions after a chunk's last token are read as that token's position: other slots may hold NaN.
        last = torch.from_numpy(pasts + counts - 1).to(device)[:, None]
        self._places = torch.where(self._keys <= last, slots, slots.gather(1, last))
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, spec: AttentionSpec, layer: LayerCache, q: Tensor, sinks: Tensor | None) -> Tensor:
        queries = q[self.start : self.stop].index_select(0, self._rows).view(*self._shape, *q.shape[1:])
        keys, values = (pages.gather(self._places, q.dtype) for pages in (layer.keys, layer.values))
        out = padded_attention(spec, queries, keys, values, self._mask(spec.window, q.dtype), sinks)
        return out.flatten(0, 1).index_select(0, self._real)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask [B, Q, L] of 0 and -inf."""
        if window not in self._masks:
            hidden = self._keys > self._at[..., None]
            if window is not None:
                hidden |= self._keys <= self._at[..., None] - window
            self._masks[window] = additive(hidden, dtype)
        return self._masks[window]


def together(
    pieces: Sequence[AttentionSegment], block_size: int, device: torch.device
) -> list[AttentionSegments]:
    """Groups adjacent chunks of one size class."""
    groups = []
    for (_, reach), alike in groupby(pieces, key=lambda piece: piece.shape):
        most = max(1, MAX_GATHERED >> reach)
        members = list(alike)
        groups += [
            AttentionSegments(members[i : i + most], block_size, device) for i in range(0, len(members), most)
        ]
    return groups


@dataclass(frozen=True)
class StepLayout:
    """Attention layout of a step in one group of layers.

    `lengths` [T]; `slots` for the keys and values of the tokens after the decodes; `fresh` holds the row boundaries of
    prompts without a past."""

    lengths: Tensor
    decodes: DecodeStep | None
    slots: Tensor
    fresh: Sequence[int] = ()
    pieces: Sequence[AttentionSegments] = ()
    related: bool = False
    """Whether some decodes are tokens of one request and attend to each other."""
    pasts: Pasts | None = None
    """Pasts of all tokens, if a compiled kernel handles all tokens alike: then only the decodes are laid out
    separately, and `slots` are the slots of all tokens."""
    chunks: Chunks | None = None
    """The tokens after the decodes, if one kernel handles them all: then they are not laid out separately."""


class Paged:
    """Attention callable of a step. `layouts` has one layout per group of layers."""

    def __init__(self, cache: KVCache, layouts: Sequence[StepLayout]) -> None:
        self.cache = cache
        self.layouts = layouts

    @property
    def lengths(self) -> Tensor:
        return self.layouts[0].lengths

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        layer, layout = self.cache.layers[spec.layer], self.layouts[self.cache.group_of[spec.layer]]
        decodes, pages = layout.decodes, (layer.keys, layer.values)
        if decodes is not None and layout.related:
            # Each decode writes its own key and value, but in no fixed order: keys that another decode reads
            # must be written first.
            layer.keys.write(decodes.slots, k[: decodes.count])
            layer.values.write(decodes.slots, v[: decodes.count])
        if decodes is not None and decodes.count == q.shape[0]:
            return paged_decode(spec, *pages, q, k, v, decodes, sinks)
        if layout.pasts is not None:
            layer.keys.write(layout.slots, k)
            layer.values.write(layout.slots, v)
            return attend(spec, q, *pages, layout.pasts, sinks)
        parts = []
        count = 0 if decodes is None else decodes.count
        if decodes is not None:
            parts.append(paged_decode(spec, *pages, q[:count], k[:count], v[:count], decodes, sinks))
        if layout.chunks is not None:
            others = q[count:], k[count:], v[count:]
            parts.append(chunk_attention(spec, *pages, *others, layout.chunks, sinks))
            return _joined(parts)
        # Fresh tokens attend over the stored keys and values, like later tokens, so that results do not
        # depend on the chunk boundaries.
        keys, values = layer.keys.write(layout.slots, k[count:]), layer.values.write(layout.slots, v[count:])
        if len(layout.fresh) > 1:
            bounds = [row - count for row in layout.fresh]
            last = bounds[-1]
            fresh = q[count : count + last], keys[:last], values[:last]
            parts.append(packed_attention(spec, *fresh, bounds, sinks))
        parts += [pieces.attend(spec, layer, q, sinks) for pieces in layout.pieces]
        return _joined(parts)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
