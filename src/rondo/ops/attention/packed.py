"""Causal attention over a flat row of packed documents."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops.dispatch import Op


@dataclass(frozen=True)
class AttentionSpec:
    """The parameters of a layer's attention, independent of its implementation."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


@Op
def packed_attention(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Sequence[int],
    sinks: Tensor | None = None,
) -> Tensor:
    """q [T, H, D], k [T, KV, D], v [T, KV, Dv] -> [T, H, Dv]; tokens attend within their own document only.

    `cu_seqlens` are the start positions of the documents, followed by T. `sinks` [H] is an additional logit a head,
    which takes probability and adds no value.
    """
    outputs = []
    for start, stop in itertools.pairwise(cu_seqlens):
        rows = slice(start, stop)
        mask = causal_mask(stop - start, stop - start, spec.window, q.device)
        outputs.append(attend_masked(spec, q[rows], k[rows], v[rows], mask, sinks))
    return torch.cat(outputs)


def attend_masked(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor | None
) -> Tensor:
    """The reference formula for one document: q [Q, H, D], k [K, KV, D], v [K, KV, Dv], mask [Q, K] -> [Q, H, Dv]."""
    group = spec.num_heads // spec.num_kv_heads
    keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores.masked_fill(~mask, -math.inf).float()
    if sinks is not None:
        column = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights.to(v.dtype), values)


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """[Q, K], true where a query attends to a key; the last query is aligned with the last key."""
    query_at = torch.arange(keys - queries, keys, device=device)[:, None]
    key_at = torch.arange(keys, device=device)[None, :]
    mask = key_at <= query_at
    if window is not None:
        mask &= key_at > query_at - window
    return mask


def window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """The mask [L, L] of a whole document; None if it equals plain causal attention."""
    return None if window is None or length <= window else causal_mask(length, length, window, device)


def fused_can(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Sequence[int],
    sinks: Tensor | None = None,
) -> bool:
    return spec.softcap is None and sinks is None


@packed_attention.fast(fused_can)
def fused(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Sequence[int],
    sinks: Tensor | None = None,
) -> Tensor:
    """PyTorch's fused attention, once for each group of documents of similar length."""
    groups = group_documents(cu_seqlens)
    if len(groups) == 1 and len(groups[0].starts) == 1:
        return _sdpa(spec, q[None], k[None], v[None])[0]
    out = q.new_empty(q.shape[0], spec.num_heads, spec.value_dim)
    pieces: list[Tensor] = []
    order: list[Tensor] = []
    for group in groups:
        take, keep = group.rows(q.device)
        padded = (x[take].view(len(group.starts), group.longest, *x.shape[1:]) for x in (q, k, v))
        pieces.append(_sdpa(spec, *padded).flatten(0, 1)[keep])
        order.append(take[keep])
    return out.index_put((torch.cat(order),), torch.cat(pieces))


def _sdpa(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [B, L, H, D] ... -> [B, L, H, Dv]. Padding is at the end, where the causal mask hides it from real rows."""
    mask = window_mask(q.shape[1], spec.window, q.device)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        scale=spec.scale,
        enable_gqa=spec.num_heads != spec.num_kv_heads,
    )
    return out.transpose(1, 2)


@dataclass(frozen=True)
class DocumentGroup:
    """Documents padded to one length."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def rows(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The source row of each padded position [B*L], and whether each position is real [B*L] bool."""
        starts = torch.tensor(self.starts, device=device)[:, None]
        lengths = torch.tensor(self.lengths, device=device)[:, None]
        offsets = torch.arange(self.longest, device=device)[None, :]
        keep = offsets < lengths
        return (starts + torch.minimum(offsets, lengths - 1)).flatten(), keep.flatten()


MAX_PADDING = 1.3
"""Maximum ratio of a group's padded size to its real size."""


def group_documents(cu_seqlens: Sequence[int]) -> list[DocumentGroup]:
    """Sorts documents by length and starts a new group where padding would cost more than another call."""
    documents = sorted((stop - start, start) for start, stop in itertools.pairwise(cu_seqlens))
    groups: list[list[tuple[int, int]]] = []
    real = 0
    for length, start in documents:
        if groups and length * (len(groups[-1]) + 1) <= MAX_PADDING * (real + length) + 64:
            groups[-1].append((length, start))
            real += length
        else:
            groups.append([(length, start)])
            real = length
    return [DocumentGroup(tuple(s for _, s in group), tuple(n for n, _ in group)) for group in groups]
