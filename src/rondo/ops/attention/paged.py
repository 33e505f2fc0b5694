"""Attention of new tokens over keys and values in pages (decode)."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec
from rondo.ops.attention.pages import Pages
from rondo.ops.dispatch import Op


@dataclass(frozen=True)
class DecodeStep:
    """One new token a request: page tables [B, P], lengths [B] including the new token, and slots [B] for its key and
    value. Built once a step, shared by all layers."""

    tables: Tensor
    lengths: Tensor
    slots: Tensor
    longest: int
    _masks: dict[int | None, Tensor] = field(default_factory=dict)
    _places: list[Tensor] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.tables.shape[0]

    def places(self, size: int) -> Tensor:
        """Slots to read, [B, longest]. Positions past a request's end map to its own new token: stale values there may
        be NaN, which a mask does not remove."""
        if not self._places:
            at = torch.arange(self.longest, device=self.lengths.device)
            self._places.append(
                torch.where(at < self.lengths[:, None], slots_at(self.tables, at, size), self.slots[:, None])
            )
        return self._places[0]

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask [B, 1, longest] of 0 and -inf."""
        if window not in self._masks:
            at = torch.arange(self.longest, device=self.lengths.device)[None, :]
            lengths = self.lengths[:, None]
            hidden = at >= lengths
            if window is not None:
                hidden |= at < lengths - window
            self._masks[window] = additive(hidden, dtype)[:, None]
        return self._masks[window]


@Op
def paged_decode(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: DecodeStep,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [B, H, D], k [B, KV, D], v [B, KV, Dv] of one token a request -> [B, H, Dv]; writes k and v to their slots."""
    keys.write(step.slots, k)
    values.write(step.slots, v)
    k, v = (pages.gather(step.places(pages.data.shape[1]), q.dtype) for pages in (keys, values))
    return padded_attention(spec, q[:, None], k, v, step.mask(spec.window, q.dtype), sinks)[:, 0]


def slots_at(tables: Tensor, at: Tensor, size: int) -> Tensor:
    """Page tables [B, P], positions [L] -> slots [B, L]."""
    return tables.index_select(1, at // size) * size + at % size


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask: True -> -inf, False -> 0."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)


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
