"""Attention over whole documents with the summation order of paged decode; the backward pass is torch's fused one.

A token's result is bitwise equal to the engine's, independent of the length of its row and of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rondo.ops.attention.packed import (
    AttentionSpec,
    DocumentGroup,
    fused,
    fused_can,
    group_documents,
    packed_attention,
    window_mask,
)
from rondo.ops.attention.paged import additive
from rondo.ops.attention.pages import Pages
from rondo.ops.attention.parts import attention_part, attention_part_gradients
from rondo.ops.gemm.linear import multiplied
from rondo.ops.kept import kept
from rondo.ops.native.attention.attend import Pasts, attend, can_attend

Recompute = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class PaddedBlock(Protocol):
    """Queries and keys padded to one length for the backward pass: indices `rows` [B * Q] and `columns` [B * L] of the
    flat row, and `real`, the positions of `rows` without padding."""

    batch: int
    rows: Tensor
    real: Tensor
    columns: Tensor

    def mask(self, window: int | None) -> Tensor | None:
        """Mask [.., Q, L], true where a query attends to a key; None for plain causal attention."""
        ...


def attend_rows(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    pasts: Pasts,
    blocks: Sequence[PaddedBlock],
    recompute: Recompute,
) -> Tensor:
    """q [T, H, D], k [T, KV, D], v [T, KV, Dv] -> [T, H, Dv]; pages of `pasts` are rows of k and v. If the fused
    backward pass does not support the layer, `recompute` is differentiated instead."""
    tensors = (q, k, v) if sinks is None else (q, k, v, sinks)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        result: Tensor = _Attend.apply(spec, q, k, v, sinks, pasts, blocks, recompute)  # type: ignore[no-untyped-call]
        return result
    return kept("attention", lambda: _forward(spec, q, k, v, sinks, pasts, None))


def _forward(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    pasts: Pasts,
    lse: Tensor | None,
) -> Tensor:
    keys, values = (Pages(x.dtype, x.contiguous().unsqueeze(1)) for x in (k, v))
    return attend(spec, q, keys, values, pasts, sinks, lse)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spec: AttentionSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        pasts: Pasts,
        blocks: Sequence[PaddedBlock],
        recompute: Recompute,
    ) -> Tensor:
        def attended() -> tuple[Tensor, Tensor]:
            lse = torch.empty(q.shape[:2], dtype=torch.float32)
            return _forward(spec, q, k, v, sinks, pasts, lse), lse

        out, lse = kept("attention", attended)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.spec, ctx.blocks, ctx.recompute = spec, blocks, recompute
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        spec, (q, k, v, sinks, out, lse) = ctx.spec, ctx.saved_tensors
        if not _fused_back(spec):
            given = _by_recompute(ctx.recompute, grads[0], (q, k, v, sinks))
        else:
            given = _Fused(spec, grads[0], q, k, v, out, lse).all(ctx.blocks)
            given = (*given, None if sinks is None else _of_sinks(grads[0], out, lse, sinks))
        return None, *given, None, None, None


def _fused_back(spec: AttentionSpec) -> bool:
    return spec.softcap is None and spec.head_dim == spec.value_dim


def _by_recompute(
    recompute: Recompute, grad: Tensor, tensors: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        q, k, v, sinks = (None if x is None else x.detach().requires_grad_() for x in tensors)
        assert q is not None
        assert k is not None
        assert v is not None
        leaves = (q, k, v) if sinks is None else (q, k, v, sinks)
        found = torch.autograd.grad(recompute(q, k, v, sinks), leaves, grad)
    return (*found, *[None] * (4 - len(found)))


def _of_sinks(grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Gradient of the sinks: a sink has no value, so raising it only reduces the weights of all keys."""
    shares = (sinks.float() - lse).exp()
    return -(shares * (grad.float() * out.float()).sum(-1)).sum(0).to(sinks.dtype)


class _Fused:
    """Backward pass block by block, from the outputs and log-sum-exps of the forward pass."""

    def __init__(
        self, spec: AttentionSpec, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> None:
        self.spec, self.dtype = spec, q.dtype
        through = multiplied(q.dtype)
        self.grad, self.q, self.k, self.v, self.out = (x.to(through) for x in (grad, q, k, v, out))
        self.lse = lse

    def all(self, blocks: Sequence[PaddedBlock]) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.cat([block.rows[block.real] for block in blocks])
        columns = torch.cat([block.columns for block in blocks])
        queries, keys, values = zip(*(self._block(block) for block in blocks), strict=True)
        return (
            _added(torch.cat(queries), rows, self.q).to(self.dtype),
            _added(torch.cat(keys), columns, self.k).to(self.dtype),
            _added(torch.cat(values), columns, self.v).to(self.dtype),
        )

    def _block(self, block: PaddedBlock) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the real query rows and of all columns of a block."""

        def padded(x: Tensor, rows: Tensor) -> Tensor:
            return x.index_select(0, rows).view(block.batch, -1, *x.shape[1:]).transpose(1, 2)

        # A padding row has zero weights: its log-sum-exp is infinite.
        lse = torch.full((block.rows.shape[0], self.lse.shape[1]), torch.inf)
        lse[block.real] = self.lse.index_select(0, block.rows[block.real])
        mask = block.mask(self.spec.window)
        seen = None if mask is None else additive(~mask, self.q.dtype)
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            padded(self.grad, block.rows),
            padded(self.q, block.rows),
            padded(self.k, block.columns),
            padded(self.v, block.columns),
            padded(self.out, block.rows),
            lse.view(block.batch, -1, lse.shape[1]).transpose(1, 2),
            0.0,
            mask is None,
            attn_mask=seen,
            scale=self.spec.scale,
        )
        queries, keys, values = (x.transpose(1, 2).flatten(0, 1) for x in found)
        return queries[block.real], keys, values


def _added(parts: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """Sums rows at their indices, like an embedding's backward pass, which is fast on a CPU and deterministic."""
    flat: Tensor = torch.ops.aten.embedding_dense_backward(parts.flatten(1), rows, like.shape[0], -1, False)
    return flat.view(like.shape)


class _Documents:
    """Documents of similar length, padded to one length."""

    def __init__(self, group: DocumentGroup) -> None:
        self.batch, self.longest = len(group.starts), group.longest
        self.rows, keep = group.rows(torch.device("cpu"))
        self.real = keep.nonzero().flatten()
        self.columns = self.rows

    def mask(self, window: int | None) -> Tensor | None:
        mask = window_mask(self.longest, window, torch.device("cpu"))
        return None if mask is None else mask[None, None]


@lru_cache(maxsize=32)
def _layout(cu_seqlens: tuple[int, ...]) -> tuple[Pasts, list[_Documents]]:
    """Page tables and groups of the documents. Cached, because all layers of a pass, and all parts of a ring, have the
    same documents; none is empty."""
    with torch.inference_mode(False):
        lengths = np.concatenate([np.arange(1, stop - start + 1) for start, stop in pairwise(cu_seqlens)])
        owners = np.arange(cu_seqlens[-1]) - (lengths - 1)
        tables = torch.arange(cu_seqlens[-1], device="cpu")[:, None]
        pasts = Pasts(tables, torch.from_numpy(owners), torch.from_numpy(lengths), int(lengths.sum()))
        return pasts, [_Documents(group) for group in group_documents(cu_seqlens)]


def _can(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Sequence[int],
    sinks: Tensor | None = None,
) -> bool:
    return 0 < q.shape[0] == cu_seqlens[-1] and cu_seqlens[0] == 0 and can_attend(q, k, v)


@packed_attention.fast(_can, first=True)
def packed_native(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Sequence[int],
    sinks: Tensor | None = None,
) -> Tensor:
    def recompute(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        able = fused_can(spec, q, k, v, cu_seqlens, sinks)
        return (fused if able else packed_attention.reference)(spec, q, k, v, cu_seqlens, sinks)

    pasts, documents = _layout(tuple(dict.fromkeys(cu_seqlens)))
    return attend_rows(spec, q, k, v, sinks, pasts, documents, recompute)


def _part_can(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Sequence[int]) -> bool:
    return _can(spec, q, k, v, cu_seqlens)


@attention_part.fast(_part_can)
def attention_part_native(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Sequence[int]
) -> tuple[Tensor, Tensor]:
    pasts, _ = _layout(tuple(dict.fromkeys(cu_seqlens)))
    logarithms = torch.empty(q.shape[:2], dtype=torch.float32)
    return _forward(spec, q, k, v, None, pasts, logarithms), logarithms


def _part_gradients_can(
    spec: AttentionSpec,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logarithms: Tensor,
    cu_seqlens: Sequence[int],
) -> bool:
    return _fused_back(spec) and _part_can(spec, q, k, v, cu_seqlens)


@attention_part_gradients.fast(_part_gradients_can)
def attention_part_gradients_native(
    spec: AttentionSpec,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logarithms: Tensor,
    cu_seqlens: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    _, documents = _layout(tuple(dict.fromkeys(cu_seqlens)))
    return _Fused(spec, grad, q, k, v, out, logarithms).all(documents)
