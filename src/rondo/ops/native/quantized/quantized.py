"""The compiled version of `quantized_linear`, registered with the operation."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rondo.ops.gemm.quantized import Quantized, QuantizedProduct, grouped_quantized_linear, quantized_linear
from rondo.ops.kept import kept
from rondo.ops.native.build.build import library
from rondo.ops.native.build.numbers import GIVEN
from rondo.ops.native.build.readable import readable
from rondo.ops.native.build.room import room

KINDS = {"int8": 3, "fp8": 4, "int4": 5, "mxfp4": 6}
"""Codes of the kinds in C."""
WORK_FOR_THREADS = 1 << 17
"""Products below which waking another thread costs more than it saves."""
MOST_COLUMNS = 1 << 16
"""Limit for which a row of the weight in fp32 fits a thread's stack, and sums of int8 products fit 32 bits."""
STEPS = {"int8": 16, "int4": 32, "mxfp4": 32, "fp8": 16}
"""Number of columns in one read."""


class CWeight(ctypes.Structure):
    """A weight in the layout of the C struct; its address is valid for the lifetime of its tensors."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "scales", "zeros", "order")),
        *((name, ctypes.c_int64) for name in ("kind", "group", "block", "whole")),
    )

    @classmethod
    def of(cls, weight: Quantized | Tensor) -> CWeight:
        if isinstance(weight, Tensor):
            return cls(data=weight.data_ptr(), kind=GIVEN[weight.dtype])
        addresses = {name: tensor.data_ptr() for name, tensor in weight.tensors.items()}
        whole = weight.activations == "int8"
        return cls(
            kind=KINDS[weight.kind], group=weight.group, block=weight.block_rows, whole=whole, **addresses
        )


class _Args(ctypes.Structure):
    _fields_ = (
        ("weight", CWeight),
        *((name, ctypes.c_void_p) for name in ("x", "out", "memory", "bounds", "owners")),
        *((name, ctypes.c_int64) for name in ("groups", "inputs", "width", "threads")),
    )


def fits(weight: Quantized) -> bool:
    """Whether the compiled products can read the weight in place."""
    if weight.data.numel() == 0 or weight.kind not in STEPS:
        return False  # dropped, or nf4
    columns, step = weight.shape[-1], STEPS[weight.kind]
    even = weight.group % step == 0 or (weight.group == columns and weight.kind != "fp8")
    return (
        even
        and 0 < columns <= MOST_COLUMNS
        and not (weight.kind == "fp8" and weight.order is not None)
        and all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in weight.tensors.values())
        and library("quantized") is not None
    )


def _can(x: Tensor, weight: Quantized, bias: Tensor | None = None) -> bool:
    return weight.data.dim() == 2 and _reads(x, weight)


def _can_group(x: Tensor, weight: Quantized, counts: Sequence[int]) -> bool:
    return not (torch.is_grad_enabled() and x.requires_grad) and _reads(x, weight)


def _reads(x: Tensor, weight: Quantized) -> bool:
    return x.dtype in GIVEN and readable(x) and fits(weight)


@quantized_linear.fast(_can)
def quantized_linear_native(x: Tensor, weight: Quantized, bias: Tensor | None = None) -> Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _Native.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return kept("product", lambda: _forward(x, weight, bias))


@grouped_quantized_linear.fast(_can_group)
def grouped_quantized_linear_native(x: Tensor, weight: Quantized, counts: Sequence[int]) -> Tensor:
    owners = [expert for expert, count in enumerate(counts) if count]
    bounds = list(accumulate((counts[expert] for expert in owners), initial=0))
    return _product(x, weight, bounds, owners).to(x.dtype)


class _Native(QuantizedProduct):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return kept("product", lambda: _forward(x, weight, bias))


def _forward(x: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
    rows = x.numel() // x.shape[-1]
    out = _product(x.reshape(rows, x.shape[-1]), weight, [0, rows], [0])
    if bias is not None:
        out += bias.float()
    return out.to(x.dtype).view(*x.shape[:-1], out.shape[1])


def _product(x: Tensor, weight: Quantized, bounds: list[int], owners: list[int]) -> Tensor:
    """x [M, K] -> [M, N] in fp32: rows `bounds[g]` to `bounds[g + 1]` are multiplied by weight `owners[g]` of [.., N,
    K]."""
    compiled = library("quantized")
    assert compiled is not None
    x = x.float().contiguous()
    width, inputs = weight.shape[-2:]
    if x.shape[-1] != inputs:
        raise RuntimeError(f"x {list(x.shape)} has not the {inputs} columns of the weight")
    out = torch.empty(x.shape[0], width, dtype=torch.float32, device="cpu")
    work = x.shape[0] * width * inputs
    arguments = _Args(
        weight=CWeight.of(weight),
        x=x.data_ptr(),
        out=out.data_ptr(),
        bounds=ctypes.addressof(edges := (ctypes.c_int64 * len(bounds))(*bounds)),
        owners=ctypes.addressof(whose := (ctypes.c_int64 * len(owners))(*owners)),
        groups=len(owners),
        inputs=inputs,
        width=width,
        threads=torch.get_num_threads() if work > WORK_FOR_THREADS else 1,
    )
    compiled.quantized_memory.restype = ctypes.c_int64
    memory = room(compiled.quantized_memory(ctypes.byref(arguments)))
    arguments.memory = memory.data_ptr()
    compiled.quantized(ctypes.byref(arguments))
    del edges, whose
    return out
