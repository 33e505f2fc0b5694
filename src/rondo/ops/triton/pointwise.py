"""Triton's versions of `rms_norm`, `add_rms_norm`, `gated` and `rotate`, registered with the operations."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rondo.ops.pointwise.activation import SWIGLU_ALPHA, SWIGLU_LIMIT, gated
from rondo.ops.pointwise.norm import add_rms_norm, rms_norm
from rondo.ops.pointwise.rope import RopeSpec, rotate
from rondo.ops.triton.at_hand import launch, power_of_two, takes, warps, with_gradient

WIDEST = 1 << 15
"""The longest row for one program."""
PIECE = 1024
KINDS = ("silu", "gelu_tanh", "gelu", "clamped_swiglu")


def _fits(x: Tensor, weight: Tensor) -> bool:
    return weight.shape == x.shape[-1:] and 0 < x.shape[-1] <= WIDEST


def _norm_can(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> bool:
    return _fits(x, weight) and takes(x, weight)


@rms_norm.fast(_norm_can)
def rms_norm_triton(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    normed = partial(_normed, eps=eps, offset=offset)
    return with_gradient(normed, partial(rms_norm.reference, eps=eps, offset=offset), x, weight)


def _normed(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    return _norm(x, None, weight, eps, offset)[1]


def _add_norm_can(x: Tensor, added: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> bool:
    return added.shape == x.shape and _fits(x, weight) and takes(x, added, weight)


@add_rms_norm.fast(_add_norm_can)
def add_rms_norm_triton(
    x: Tensor, added: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() and any(each.requires_grad for each in (x, added, weight)):
        return add_rms_norm.reference(x, added, weight, eps, offset)
    return _norm(x, added, weight, eps, offset)


def _norm(
    x: Tensor, added: Tensor | None, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    """x, or x + added, and its norm."""
    from rondo.ops.triton.kernels.pointwise import norm_rows

    size = x.shape[-1]
    out = x.new_empty(x.shape)
    total = x if added is None else torch.empty_like(out)
    rows = _rows(x)
    more = rows if added is None else _rows(added)
    width = power_of_two(size)
    launch(
        norm_rows,
        (len(rows),),
        x,
        *(rows, more, weight.contiguous(), total, out, rows.stride(0), more.stride(0)),
        *(size, eps, offset),
        WIDTH=width,
        ADDS=added is not None,
        num_warps=warps(width),
    )
    return total, out


def _rows(x: Tensor) -> Tensor:
    """[rows, size] with contiguous rows."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _gated_can(kind: str, gate: Tensor, up: Tensor) -> bool:
    return kind in KINDS and gate.shape == up.shape and takes(gate, up)


@gated.fast(_gated_can)
def gated_triton(kind: str, gate: Tensor, up: Tensor) -> Tensor:
    return with_gradient(partial(_activated, kind), partial(gated.reference, kind), gate, up)


def _activated(kind: str, gate: Tensor, up: Tensor) -> Tensor:
    from rondo.ops.triton.kernels.pointwise import gate_pieces

    out = gate.new_empty(gate.shape)
    count = gate.numel()
    launch(
        gate_pieces,
        (-(-count // PIECE),),
        gate,
        *(gate.contiguous(), up.contiguous(), out, count, SWIGLU_LIMIT, SWIGLU_ALPHA),
        KIND=kind,
        PIECE=PIECE,
        num_warps=4,
    )
    return out


def _rotate_can(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    table = (x.shape[0], 1, spec.dim // 2)
    fits = x.ndim == 3 and spec.dim <= x.shape[-1] and cos.shape == sin.shape == table
    learned = torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)
    return fits and not learned and takes(x, cos, sin)


@rotate.fast(_rotate_can)
def rotate_triton(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    def turned(x: Tensor) -> Tensor:
        return _turned(spec, x, cos, sin)

    def reference(x: Tensor) -> Tensor:
        return rotate.reference(spec, x, cos, sin)

    return with_gradient(turned, reference, x)


def _turned(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from rondo.ops.triton.kernels.pointwise import rotate_tokens

    x = x if x.stride(-1) == 1 else x.contiguous()
    tokens, heads, dim = x.shape
    half = spec.dim // 2
    out = x.new_empty(x.shape)
    tile = power_of_two(heads), power_of_two(half)
    launch(
        rotate_tokens,
        (tokens,),
        x,
        *(x, cos.contiguous(), sin.contiguous(), out, x.stride(0), x.stride(1), heads, dim, half),
        HEADS=tile[0],
        HALF=tile[1],
        REST=power_of_two(dim - 2 * half) if dim > 2 * half else 0,
        INTERLEAVED=spec.interleaved,
        num_warps=warps(tile[0] * tile[1]),
    )
    return out
