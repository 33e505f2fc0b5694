"""How a serving step attends: new keys and values go to their slots, and each token sees its own request's past.

Built once a step, used by every layer. The row of tokens begins with the decodes (one token a request); after them
come whole prompts without a past, and last the pieces of prompts that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.engine.cache import KVCache
from rondo.ops import AttentionSpec, DecodeStep, packed_attention, paged_decode
from rondo.ops.paged_attention import additive, gather_pages, padded_attention


@dataclass(frozen=True)
class Piece:
    """A chunk of a prompt: `count` tokens from row `start` on, after `past` tokens that are in `blocks` already."""

    start: int
    count: int
    past: int
    blocks: Tensor


@dataclass(frozen=True)
class StepLayout:
    """lengths [T]; `slots` where the keys and values of the tokens after the decodes go; `fresh` are the row's
    boundaries of prompts without a past."""

    lengths: Tensor
    decodes: DecodeStep | None
    slots: Tensor
    fresh: Sequence[int]
    pieces: Sequence[Piece]


class Paged:
    def __init__(self, cache: KVCache, layout: StepLayout) -> None:
        self.cache = cache
        self.layout = layout

    @property
    def lengths(self) -> Tensor:
        return self.layout.lengths

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        layer, layout = self.cache.layers[spec.layer], self.layout
        decodes, pages = layout.decodes, (layer.keys, layer.values)
        if decodes is not None and decodes.count == q.shape[0]:
            return paged_decode(spec, *pages, q, k, v, decodes, sinks)
        parts = []
        count = 0 if decodes is None else decodes.count
        if decodes is not None:
            parts.append(paged_decode(spec, *pages, q[:count], k[:count], v[:count], decodes, sinks))
        layer.flat_keys.index_copy_(0, layout.slots, k[count:])
        layer.flat_values.index_copy_(0, layout.slots, v[count:])
        if len(layout.fresh) > 1:
            first, last = layout.fresh[0], layout.fresh[-1]
            bounds = [row - first for row in layout.fresh]
            parts.append(packed_attention(spec, q[first:last], k[first:last], v[first:last], bounds, sinks))
        parts += [self._continue(spec, q[p.start : p.start + p.count], p, sinks) for p in layout.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _continue(self, spec: AttentionSpec, q: Tensor, piece: Piece, sinks: Tensor | None) -> Tensor:
        layer = self.cache.layers[spec.layer]
        total = piece.past + piece.count
        table = piece.blocks[None]
        keys, values = (
            gather_pages(layer.keys, table)[:, :total],
            gather_pages(layer.values, table)[:, :total],
        )
        query_at = torch.arange(piece.past, total, device=q.device)[:, None]
        key_at = torch.arange(total, device=q.device)[None, :]
        hidden = key_at > query_at
        if spec.window is not None:
            hidden |= key_at <= query_at - spec.window
        return padded_attention(spec, q[None], keys, values, additive(hidden, q.dtype)[None], sinks)[0]
