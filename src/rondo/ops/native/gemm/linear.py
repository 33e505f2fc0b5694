"""The compiled product, `linear.c`: a row's bits depend on that row only, and equal the result of a compiled step."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rondo.ops.gemm.linear import cpu_multiplies_bf16, linear, linear_gradients
from rondo.ops.kept import kept
from rondo.ops.native.build.ahead import multiplies_bf16
from rondo.ops.native.build.build import library
from rondo.ops.native.build.level import best, level
from rondo.ops.native.build.numbers import GIVEN
from rondo.ops.native.build.readable import address, readable
from rondo.ops.native.build.room import room
from rondo.ops.native.build.tuned import AS_BUILT, WorkSplit, cut_of

STEP = 16
"""The number of inputs is padded to a multiple of this."""
WORK_FOR_THREADS = 1 << 18
"""Multiplications below which waking another thread costs more than it saves."""
TYPES = (torch.float32, torch.bfloat16)


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "out", "memory", "seconds")),
        *((name, ctypes.c_int64) for name in ("rows", "in", "width", "type", "threads", "few", "columns")),
    )


_wanted: set[object] = set()
"""One entry for each owner that requires the compiled product even if torch's is faster."""


def always_take_bf16(owner: object) -> Callable[[], object]:
    """Enables the compiled bf16 product in this process until the returned function is called or the owner is deleted,
    for owners that need bitwise equal results everywhere."""
    want = object()
    _wanted.add(want)
    return weakref.finalize(owner, _wanted.discard, want)


def takes_bf16() -> bool:
    """Whether the compiled product runs for bf16. If the CPU has bf16 instructions that the compiled product does not
    use, torch's product is faster."""
    return bool(_wanted) or _compiled_is_faster()


@cache
def _compiled_is_faster() -> bool:
    return not cpu_multiplies_bf16() or multiplies_bf16() or level() != best()


def _can(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        x.dtype in TYPES
        and (x.dtype != torch.bfloat16 or takes_bf16())
        and weight.ndim == 2
        and x.ndim > 0
        and x.shape[-1] > 0
        and not torch.is_autocast_enabled("cpu")
        and readable(*tensors)
        and library("linear") is not None
    )


@linear.fast(_can, first=True)
def linear_native(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return kept("product", lambda: product(x, weight, bias))


class _Linear(torch.autograd.Function):
    """A compiled forward pass with torch's backward pass: gradients are sums over tokens and depend on the batch
    anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return kept("product", lambda: product(x, weight, bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return linear_gradients(grads[0], x, weight, ctx.needs_input_grad)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cut: WorkSplit | None = None,
    threads: int | None = None,
    seconds: Tensor | None = None,
) -> Tensor:
    """[..., K] x [N, K] -> [..., N], without a gradient; K is not 0. The result is bitwise independent of the cut and
    the threads. The CPU time of each thread is written to `seconds` (fp64)."""
    if x.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        biased = "" if bias is None else f" and a bias of {tuple(bias.shape)}"
        raise RuntimeError(
            f"{tuple(x.shape)} cannot be multiplied by a weight of {tuple(weight.shape)}{biased}"
        )
    if x.shape[-1] % STEP:
        more = (0, -x.shape[-1] % STEP)
        x, weight = F.pad(x, more), F.pad(weight, more)
    compiled = library("linear")
    assert compiled is not None
    x, weight, bias = x.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous()
    width, inputs = weight.shape
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device="cpu")
    rows = x.numel() // inputs
    if not rows:
        return out
    if threads is None:
        threads = torch.get_num_threads() if rows * width * inputs > WORK_FOR_THREADS else 1
    cut = cut or (AS_BUILT if _wanted else cut_of(x.dtype, width, inputs, threads))
    arguments = _Args(
        x.data_ptr(),
        weight.data_ptr(),
        address(bias),
        out.data_ptr(),
        None,
        address(seconds),
        rows,
        inputs,
        width,
        GIVEN[x.dtype],
        threads,
        *cut,
    )
    compiled.linear_memory.restype = ctypes.c_int64
    memory = room(compiled.linear_memory(ctypes.byref(arguments)))
    arguments.memory = memory.data_ptr()
    compiled.linear(ctypes.byref(arguments))
    return out
