"""Attention to a part of the context, and its backward pass. Parts are merged by their log-sum-exps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec, causal_mask
from rondo.ops.dispatch import Op

BLOCK = 1024
"""Queries in one block, which bounds the memory of scores in a long document."""


@Op
def attention_part(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Like `packed_attention`, without sinks and gradients: outputs [T, H, Dv] and log-sum-exps fp32 [T, H]."""
    out = q.new_empty(q.shape[0], spec.num_heads, spec.value_dim)
    logarithms = q.new_empty(q.shape[:2], dtype=torch.float32)
    for rows, keys in _blocks(cu_seqlens, spec.window):
        scores, _ = _scores(spec, q[rows], k[keys])
        of_rows = scores.logsumexp(-1)
        weights = (scores - of_rows[..., None]).exp()
        out[rows] = torch.einsum("jgqk,kjd->qjgd", weights, v[keys].float()).flatten(1, 2).to(out.dtype)
        logarithms[rows] = of_rows.flatten(0, 1).T
    return out, logarithms


@Op
def attention_part_gradients(
    spec: AttentionSpec,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logarithms: Tensor,
    cu_seqlens: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v for a part of an attention; `grad`, `out` and `logarithms` belong to the whole."""
    grads = tuple(torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
    of_q, of_k, of_v = grads
    share = (grad.float() * out.float()).sum(-1)
    for rows, keys in _blocks(cu_seqlens, spec.window):
        scores, slope = _scores(spec, q[rows], k[keys])
        weights = (scores - _by_key_head(spec, logarithms[rows])).exp()
        back = _grouped(spec, grad[rows])
        of_v[keys] += torch.einsum("jgqk,qjgd->kjd", weights, back)
        of_weights = torch.einsum("qjgd,kjd->jgqk", back, v[keys].float())
        of_scores = weights * (of_weights - _by_key_head(spec, share[rows])) * spec.scale
        if slope is not None:
            of_scores = of_scores * slope
        queries = _grouped(spec, q[rows])
        of_q[rows] = torch.einsum("jgqk,kjd->qjgd", of_scores, k[keys].float()).flatten(1, 2)
        of_k[keys] += torch.einsum("jgqk,qjgd->kjd", of_scores, queries)
    return of_q.to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype)


def _blocks(cu_seqlens: Sequence[int], window: int | None) -> Iterator[tuple[slice, slice]]:
    """Blocks of consecutive queries, and the range of keys that they attend to."""
    for start, stop in pairwise(cu_seqlens):
        for first in range(start, stop, BLOCK):
            last = min(first + BLOCK, stop)
            begin = start if window is None else max(start, first - window + 1)
            yield slice(first, last), slice(begin, last)


def _scores(spec: AttentionSpec, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor | None]:
    """q [Q, H, D], k [K, KV, D] -> scores fp32 [KV, H / KV, Q, K], and the derivative of the soft cap, if any."""
    scores, slope = torch.einsum("qjgd,kjd->jgqk", _grouped(spec, q), k.float()) * spec.scale, None
    if spec.softcap is not None:
        bent = torch.tanh(scores / spec.softcap)
        scores, slope = spec.softcap * bent, 1 - bent * bent
    mask = causal_mask(q.shape[0], k.shape[0], spec.window, q.device)
    return scores.masked_fill(~mask, -torch.inf), slope


def _grouped(spec: AttentionSpec, x: Tensor) -> Tensor:
    """[Q, H, D] -> fp32 [Q, KV, H / KV, D]."""
    return x.float().reshape(x.shape[0], spec.num_kv_heads, -1, x.shape[-1])


def _by_key_head(spec: AttentionSpec, x: Tensor) -> Tensor:
    """[Q, H] -> [KV, H / KV, Q, 1]."""
    return x.T.reshape(spec.num_kv_heads, -1, x.shape[0], 1)
