"""The common representation of quantized weights, and the product with them.

A weight is [N, K], or [E, N, K] for the experts of a layer. Number (n, k) represents (data - zero) * scale. One scale
covers a block of rows and a group of columns, which divide the weight evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from rondo.ops.attention.pages import encode
from rondo.ops.dispatch import Op
from rondo.ops.gemm import nf4
from rondo.ops.gemm.linear import gradient_of_x, linear
from rondo.ops.kept import kept
from rondo.ops.sharded.layout import refuse_shards

Kind = Literal["int8", "int4", "fp8", "mxfp4", "nf4"]

DATA_TYPES: dict[Kind, torch.dtype] = {
    "int8": torch.int8,
    "int4": torch.uint8,
    "fp8": torch.float8_e4m3fn,
    "mxfp4": torch.uint8,
    "nf4": torch.uint8,
}
PACKED: tuple[Kind, ...] = ("int4", "mxfp4", "nf4")
"""Kinds with two numbers a byte; the lower half is the even column."""
MX_GROUP = 32
SYMMETRIC_ZERO = 8
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
EXACT_COLUMNS = 1024
"""Number of int8 products whose sum stays below 2**24, which fp32 represents exactly."""


@dataclass(frozen=True)
class Quantized:
    """A quantized weight: data [.., N, K], or uint8 [.., N, K/2] for 4-bit kinds; scales fp32 [.., N / rows, K /
    group], for mxfp4 its exponents (e8m0 as uint8 [.., N, K/32]), for nf4 with `nested` 8-bit codes (uint8)."""

    kind: Kind
    data: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    """Zeros of int4, uint8 [.., N, K / group]; None means 8 everywhere."""
    order: Tensor | None = None
    """Column k of `data` multiplies x[..., order[k]]: [.., K] int64."""
    activations: Literal["float", "int8"] = "float"
    """With int8, each row of x is quantized to int8 too, its largest magnitude to 127."""
    nested: Tensor | None = None
    """nf4: the mean of the scales and the scales of their codes, fp32 [.., 1 + blocks]."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the represented weight."""
        *leading, columns = self.data.shape
        return (*leading, columns * 2 if self.kind in PACKED else columns)

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.shape[-1] // self.scales.shape[-1]

    @property
    def block_rows(self) -> int:
        """Rows that share a scale."""
        return self.shape[-2] // self.scales.shape[-2]

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the weight by field name."""
        fields = {"data": self.data, "scales": self.scales, "zeros": self.zeros, "order": self.order}
        fields["nested"] = self.nested
        return {name: tensor for name, tensor in fields.items() if tensor is not None}

    def expert(self, index: int) -> Quantized:
        """One of several weights [E, N, K], as a view."""
        return self.mapped(lambda tensor: tensor[index])

    def rows(self, region: slice) -> Quantized:
        """A range of rows. The data of a single matrix [N, K] is a view."""
        if self.nested is not None:
            return self.with_plain_scales().rows(region)
        one_scale = self.scales.shape[-2] == 1
        scales = self.scales if one_scale else self.scales.repeat_interleave(self.block_rows, -2)
        return replace(
            self,
            data=self.data[..., region, :].contiguous(),
            scales=scales if one_scale else scales[..., region, :].contiguous(),
            zeros=None if self.zeros is None else self.zeros[..., region, :].contiguous(),
        )

    def with_zeros(self) -> Quantized:
        """The same weight with explicit zeros."""
        if self.zeros is not None:
            return self
        return replace(self, zeros=torch.full_like(self.scales, SYMMETRIC_ZERO, dtype=torch.uint8))

    def with_order(self) -> Quantized:
        """The same weight with an explicit column order."""
        if self.order is not None:
            return self
        return replace(self, order=torch.arange(self.shape[-1], device=self.device))

    def with_plain_scales(self) -> Quantized:
        """The same weight with scales in fp32, without `nested`."""
        if self.nested is None:
            return self
        return replace(self, scales=nf4.plain_scales(self.scales, self.nested), nested=None)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Quantized:
        """The same weight with `change` applied to each tensor, for example a move to a device."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors.items()}
        return replace(self, **changed)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The represented weight [.., N, K], columns in the order of x; computed in fp32, then rounded."""
        shape = self.shape
        *experts, rows, columns = shape
        blocks = (*experts, rows // self.block_rows, self.block_rows, columns // self.group, self.group)
        numbers = _numbers(self).view(blocks)
        if self.kind == "int4":
            zero = SYMMETRIC_ZERO if self.zeros is None else self.zeros.float()[..., None, :, None]
            numbers = numbers - zero
        scales = self.with_plain_scales().scales
        if self.kind == "mxfp4":
            scales = _powers(scales.device)[scales.int()]
        weight = numbers.mul_(scales[..., :, None, :, None]).to(dtype).view(shape)
        if self.order is not None:
            weight = torch.empty_like(weight).scatter_(-1, self.order.unsqueeze(-2).expand(shape), weight)
        return weight


def _check(weight: Quantized) -> None:
    """Raises for dtypes and shapes that the operations do not support."""
    kind, data, scales = weight.kind, weight.data, weight.scales
    refuse_shards("a quantized weight", *weight.tensors.values())
    if kind not in DATA_TYPES:
        raise ValueError(f"kind {kind!r} is not one of {', '.join(DATA_TYPES)}")
    if data.dtype != DATA_TYPES[kind] or data.dim() not in (2, 3):
        raise ValueError(f"data of {kind} is {DATA_TYPES[kind]} [N, K] or [E, N, K], not {_told(data)}")
    *experts, rows, columns = weight.shape
    wanted = torch.uint8 if kind == "mxfp4" or weight.nested is not None else torch.float32
    if scales.dtype != wanted or scales.dim() != data.dim() or list(scales.shape[:-2]) != experts:
        raise ValueError(f"scales of {kind} {list(weight.shape)} are {wanted}, not {_told(scales)}")
    if not _divides(scales.shape[-2], rows) or not _divides(scales.shape[-1], columns):
        raise ValueError(f"scales {list(scales.shape)} do not divide a weight {list(weight.shape)} evenly")
    if kind == "mxfp4" and (columns != MX_GROUP * scales.shape[-1] or rows != scales.shape[-2]):
        raise ValueError(f"scales of mxfp4 {list(weight.shape)} are one for {MX_GROUP} columns of a row")
    if kind in ("int4", "nf4") and scales.shape[-2] != rows:
        raise ValueError(
            f"scales of {kind} {list(weight.shape)} are of one row each, not {list(scales.shape)}"
        )
    if weight.nested is not None:
        blocks = -(-scales.shape[-2] * scales.shape[-1] // nf4.NESTED_GROUP)
        if kind != "nf4" or list(weight.nested.shape) != [*experts, 1 + blocks]:
            raise ValueError(f"nested of nf4 is fp32 {[*experts, 1 + blocks]}, not {_told(weight.nested)}")
    if weight.zeros is not None and (
        kind != "int4" or weight.zeros.dtype != torch.uint8 or weight.zeros.shape != scales.shape
    ):
        raise ValueError(f"zeros are of int4, uint8 and shaped as the scales, not {_told(weight.zeros)}")
    if weight.order is not None and (
        weight.order.dtype != torch.int64 or list(weight.order.shape) != [*experts, columns]
    ):
        raise ValueError(f"order is int64 {[*experts, columns]}, not {_told(weight.order)}")
    if weight.activations not in ("float", "int8"):
        raise ValueError(f"activations {weight.activations!r} is neither float nor int8")
    if weight.activations == "int8" and (kind != "int8" or scales.shape[-1] != 1 or weight.order is not None):
        raise ValueError("int8 activations need an int8 weight with one scale for all columns of a row")


def _divides(parts: int, whole: int) -> bool:
    return parts > 0 and whole % parts == 0


def _told(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _numbers(weight: Quantized) -> Tensor:
    """The stored numbers as fp32 [.., N, K]."""
    if weight.kind not in PACKED:
        return weight.data.float()
    if weight.kind == "nf4":
        return nf4.numbers(weight.data)
    codes = unpack(weight.data)
    return codes.float() if weight.kind == "int4" else _e2m1(codes.device)[codes.int()]


def unpack(data: Tensor) -> Tensor:
    """uint8 [.., K/2] -> uint8 [.., K] of numbers 0 to 15."""
    return torch.stack([data & 15, data >> 4], dim=-1).flatten(-2)


def pack(codes: Tensor) -> Tensor:
    """uint8 [.., K] of numbers 0 to 15 -> uint8 [.., K/2]."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


@cache
def _e2m1(device: torch.device) -> Tensor:
    return torch.tensor([*E2M1, *(-number for number in E2M1)], device=device)


@cache
def _powers(device: torch.device) -> Tensor:
    """The values of the 256 codes of e8m0."""
    return torch.tensor([*(2.0 ** (code - 127) for code in range(255)), torch.nan], device=device)


@Op
def quantized_linear(x: Tensor, weight: Quantized, bias: Tensor | None = None) -> Tensor:
    """[..., K] x [N, K] -> [..., N] in the dtype of x; only x has a gradient."""
    refuse_shards("a product with quantized weights", x, bias)
    result: Tensor = QuantizedProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


@Op
def grouped_quantized_linear(x: Tensor, weight: Quantized, counts: Sequence[int]) -> Tensor:
    """x [M, K] sorted by expert, with `counts` rows an expert, x weights [E, N, K] -> [M, N]."""
    parts = torch.split(x, list(counts))
    return torch.cat(
        [quantized_linear(rows, weight.expert(i)) for i, rows in enumerate(parts) if rows.shape[0]]
    )


class QuantizedProduct(torch.autograd.Function):
    """Dequantizes again in backward, so that no wide weight outlives a call. The gradient passes through the rounding
    of activations unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
        ctx.weight = weight

        def multiply() -> Tensor:
            if weight.activations == "int8":
                return _int8_product(x, weight, bias)
            return linear(x, weight.dequantized(x.dtype), bias)

        return kept("product", multiply)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return gradient_of_x(grads[0], ctx.weight.dequantized(grads[0].dtype)), None, None


def _int8_product(x: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
    """The product of int8 activations: exact integer sums, then in fp32 sums * scale of x * scale of the weight's row +
    bias."""
    numbers, x_scales = encode(x, torch.int8)
    assert x_scales is not None
    sums = integer_sums(numbers, weight.data).float()
    scales = weight.scales[:, 0].repeat_interleave(weight.block_rows)
    result = sums * x_scales[..., None] * scales
    return (result if bias is None else result + bias.float()).to(x.dtype)


def integer_sums(x: Tensor, weight: Tensor) -> Tensor:
    """int8 [..., K] x int8 [N, K] -> int32 [..., N], exact. Computed in fp32 pieces, because every device supports that
    product."""
    sums = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.int32, device=x.device)
    for start in range(0, x.shape[-1], EXACT_COLUMNS):
        columns = slice(start, start + EXACT_COLUMNS)
        sums += (x[..., columns].float() @ weight[:, columns].float().T).int()
    return sums
