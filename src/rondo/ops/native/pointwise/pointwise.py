"""The compiled versions of `rms_norm`, `gated` and `rotate`, with gradients, registered with the operations.

Between small matrix products on a CPU, the number of operations dominates the cost: each of these is one call and one
pass over memory, where the reference takes five to eight.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rondo.ops.native.build.build import library
from rondo.ops.native.build.readable import address, readable
from rondo.ops.pointwise.activation import gated
from rondo.ops.pointwise.norm import rms_norm
from rondo.ops.pointwise.rope import RopeSpec, rotate

_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
NUMBERS_FOR_THREADS = 1 << 15
"""Number of elements below which waking another thread costs more than it saves."""
ROWS_OF_A_SUM = 64


def _ours(*tensors: Tensor) -> bool:
    return tensors[0].dtype in _SUFFIX and readable(*tensors) and library("pointwise") is not None


KINDS = ("silu", "gelu_tanh", "gelu", "clamped_swiglu")

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {
    "rms_norm": [*[_POINTER] * 4, _INT, _INT, _FLOAT, _FLOAT],
    "rms_norm_backward": [*[_POINTER] * 6, _INT, _INT, _INT, _FLOAT],
    **{kind: [*[_POINTER] * 3, _INT] for kind in KINDS},
    **{f"{kind}_backward": [*[_POINTER] * 5, _INT] for kind in KINDS},
    "rotate": [*[_POINTER] * 4, *[_INT] * 4, _FLOAT],
}


@cache
def _function(name: str, dtype: torch.dtype) -> Any:
    function = getattr(library("pointwise"), f"{name}_{_SUFFIX[dtype]}")
    function.argtypes, function.restype = [*_ARGUMENTS[name], _INT], None
    return function


def _call(name: str, like: Tensor, *arguments: int | float | None) -> None:
    """Calls a C function. Tensors are passed by address; the number of threads is the last argument."""
    threads = torch.get_num_threads() if like.numel() > NUMBERS_FOR_THREADS else 1
    _function(name, like.dtype)(*arguments, threads)


def _addresses(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _wants_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _norm_can(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> bool:
    return weight.shape == x.shape[-1:] and _ours(x, weight)


@rms_norm.fast(_norm_can)
def _rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    if _wants_grad(x, weight):
        result: Tensor = _RmsNorm.apply(x, weight, eps, offset)  # type: ignore[no-untyped-call]
        return result
    return _normed(x.contiguous(), weight, None, eps, offset)


def _normed(x: Tensor, weight: Tensor, inverse: Tensor | None, eps: float, offset: float) -> Tensor:
    out, size, weight = torch.empty_like(x), x.shape[-1], weight.contiguous()
    pointers = x.data_ptr(), weight.data_ptr(), out.data_ptr(), address(inverse)
    _call("rms_norm", x, *pointers, x.numel() // size, size, eps, offset)
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        x = x.contiguous()
        inverse = torch.empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, inverse)
        ctx.offset = offset
        return _normed(x, weight, inverse, eps, offset)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, inverse = ctx.saved_tensors
        rows, size = inverse.numel(), x.shape[-1]
        grad_x = torch.empty_like(x)
        partial = torch.empty(-(-rows // ROWS_OF_A_SUM), size)
        tensors = (grads[0].contiguous(), x, weight.contiguous(), inverse, grad_x, partial)
        _call("rms_norm_backward", x, *_addresses(tensors), rows, size, ROWS_OF_A_SUM, ctx.offset)
        return grad_x, partial.sum(0).to(weight.dtype), None, None


def _gated_can(kind: str, gate: Tensor, up: Tensor) -> bool:
    return kind in KINDS and gate.shape == up.shape and _ours(gate, up)


@gated.fast(_gated_can)
def _gated(kind: str, gate: Tensor, up: Tensor) -> Tensor:
    if _wants_grad(gate, up):
        result: Tensor = _Gated.apply(kind, gate, up)  # type: ignore[no-untyped-call]
        return result
    return _activated(kind, gate.contiguous(), up.contiguous())


def _activated(kind: str, gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty_like(gate)
    _call(kind, gate, gate.data_ptr(), up.data_ptr(), out.data_ptr(), gate.numel())
    return out


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        ctx.kind = kind
        return _activated(kind, gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        tensors = (grads[0].contiguous(), gate, up, grad_gate, grad_up)
        _call(f"{ctx.kind}_backward", gate, *_addresses(tensors), gate.numel())
        return None, grad_gate, grad_up


def _rotate_can(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    table = (x.shape[0], 1, spec.dim // 2)
    fits = x.ndim == 3 and spec.dim <= x.shape[-1] and cos.shape == sin.shape == table
    return not spec.interleaved and fits and not _wants_grad(cos, sin) and _ours(x, cos, sin)


@rotate.fast(_rotate_can)
def _rotate(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if _wants_grad(x):
        result: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        return result
    return _turned(x, cos, sin, 1.0)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    out = torch.empty_like(x)
    _call("rotate", x, *_addresses((x, cos, sin, out)), *x.shape, cos.shape[-1], sign)
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, sin, -1.0), None, None
