"""How a serving step attends: new keys and values go to their slots, and each token sees its own request's past.

Built once a step, used by every layer. The row of tokens begins with the decodes (one token a request); after them
come whole prompts without a past, and last the pieces of prompts that have one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.engine.cache import KVCache
from rondo.engine.native.paged_decode import available, paged_decode
from rondo.ops import AttentionSpec, packed_attention


@dataclass(frozen=True)
class Piece:
    """A chunk of a prompt: `count` tokens from row `start` on, after `past` tokens that are in `blocks` already."""

    start: int
    count: int
    past: int
    blocks: Tensor


@dataclass(frozen=True)
class StepLayout:
    """slots [T] where each token's key and value go; tables [decodes, pages] and longest for the decodes;
    `fresh` are the row's boundaries of prompts without a past."""

    slots: Tensor
    lengths: Tensor
    decodes: int
    tables: Tensor | None
    longest: int
    fresh: Sequence[int]
    pieces: Sequence[Piece]


class Paged:
    def __init__(self, cache: KVCache, layout: StepLayout) -> None:
        self.cache = cache
        self.layout = layout
        self._native = available(cache.device, cache.dtype)
        self._masks: dict[int | None, Tensor] = {}

    @property
    def lengths(self) -> Tensor:
        return self.layout.lengths

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        layer, layout = self.cache.layers[spec.layer], self.layout
        decodes = layout.decodes
        if self._native and decodes == q.shape[0]:
            return self._decode_native(spec, q, k, v, sinks)
        layer.flat_keys.index_copy_(0, layout.slots, k)
        layer.flat_values.index_copy_(0, layout.slots, v)
        parts = []
        if decodes and self._native:
            parts.append(self._decode_native(spec, q[:decodes], k[:decodes], v[:decodes], sinks))
        elif decodes:
            parts.append(self._decode(spec, q[:decodes], sinks))
        if len(layout.fresh) > 1:
            first, last = layout.fresh[0], layout.fresh[-1]
            bounds = [row - first for row in layout.fresh]
            parts.append(packed_attention(spec, q[first:last], k[first:last], v[first:last], bounds, sinks))
        parts += [self._continue(spec, q[p.start : p.start + p.count], p, sinks) for p in layout.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode_native(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> Tensor:
        layer, layout = self.cache.layers[spec.layer], self.layout
        assert layout.tables is not None
        tables, lengths, slots = layout.tables, layout.lengths, layout.slots
        return paged_decode(spec, layer, q, k, v, tables, lengths, slots, layout.longest, sinks)

    def _decode(self, spec: AttentionSpec, q: Tensor, sinks: Tensor | None) -> Tensor:
        layer, layout = self.cache.layers[spec.layer], self.layout
        assert layout.tables is not None
        keys, values = gather_pages(layer.keys, layout.tables), gather_pages(layer.values, layout.tables)
        longest = layout.longest
        mask = self._decode_mask(spec.window, q.dtype)
        return padded_attention(spec, q[:, None], keys[:, :longest], values[:, :longest], mask, sinks)[:, 0]

    def _decode_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[decodes, 1, longest], 0 or -inf."""
        mask = self._masks.get(window)
        if mask is None:
            lengths = self.layout.lengths[: self.layout.decodes, None]
            at = torch.arange(self.layout.longest, device=lengths.device)[None, :]
            hidden = at >= lengths
            if window is not None:
                hidden |= at < lengths - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(
                hidden, -math.inf
            )[:, None]
            self._masks[window] = mask
        return mask

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
        mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, -math.inf)[None]
        return padded_attention(spec, q[None], keys, values, mask, sinks)[0]


def gather_pages(pages: Tensor, tables: Tensor) -> Tensor:
    """pages [blocks, size, KV, D] and tables [B, P] -> [B, P * size, KV, D]."""
    rows = pages.index_select(0, tables.flatten())
    return rows.view(tables.shape[0], tables.shape[1] * pages.shape[1], *pages.shape[2:])


def padded_attention(
    spec: AttentionSpec, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None
) -> Tensor:
    """q [B, Q, H, D], keys [B, L, KV, D], values [B, L, KV, Dv], mask [B, Q, L] of 0 and -inf -> [B, Q, H, Dv].

    The query heads that share a key head become rows of one small matrix, so keys are read once and not repeated.
    """
    batch, queries, heads, _ = q.shape
    kv = spec.num_kv_heads
    group = heads // kv
    q = q.view(batch, queries, kv, group, -1).permute(0, 2, 1, 3, 4).reshape(batch, kv, queries * group, -1)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if queries > 1 and group > 1:
        mask = mask[:, :, None, :].expand(-1, -1, group, -1).flatten(1, 2)
    mask = mask[:, None]
    if spec.softcap is None and sinks is None:
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=spec.scale)
    else:
        out = _by_formula(spec, q, keys, values, mask, sinks)
    return out.view(batch, kv, queries, group, -1).permute(0, 2, 1, 3, 4).reshape(batch, queries, heads, -1)


def _by_formula(
    spec: AttentionSpec, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None
) -> Tensor:
    scores = (q @ keys.transpose(2, 3)).float() * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores + mask
    if sinks is not None:
        batch, kv, rows, _ = scores.shape
        group = spec.num_heads // kv
        column = (
            sinks.float()
            .view(1, kv, 1, group)
            .expand(batch, kv, rows // group, group)
            .reshape(batch, kv, rows, 1)
        )
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)
    if sinks is not None:
        weights = weights[..., :-1]
    return weights.to(values.dtype) @ values
