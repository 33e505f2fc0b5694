"""File formats of quantized weights: the tensors of a weight [N, K] in each, reading into the common representation,
and writing.

A format with the layout of the common representation is used from the mapped file without a copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rondo.models.quantized.scheme import Format, Scheme
from rondo.ops import Quantized
from rondo.ops.gemm import nf4
from rondo.ops.gemm.quantized import MX_GROUP, SYMMETRIC_ZERO, pack, unpack

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INT32 = (torch.int32,)
Tensors = Mapping[str, Tensor]
Made = dict[str, Callable[[], Tensor]]
"""Tensors to write, each created on demand, because a file orders tensors by dtype and name and not by weight."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Want:
    """Requirements on a stored tensor; `ends` is the suffix after the module's name."""

    ends: str
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[Shape, ...]
    """Permitted shapes, the usual one first; a dimension of -1 is not checked."""
    optional: bool = False
    grouped: bool = False
    """Whether the shape depends on the group size."""


@dataclass(frozen=True)
class QuantizedLayout:
    wants: Callable[[Scheme, Shape], list[Want]]
    read: Callable[[Scheme, Shape, Tensors], Quantized]
    write: Callable[[Scheme, Quantized, torch.dtype], Made] | None = None
    """Arguments: scheme, weight, dtype of the scales."""


def groups_of(scheme: Scheme, columns: int) -> int:
    return 1 if scheme.group is None else columns // scheme.group


# GPTQ: qweight [K/8, N], eight input rows in each int32.


def _gptq_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    rows, columns = shape
    groups = groups_of(scheme, columns)
    return [
        Want(".qweight", INT32, ((columns // 8, rows),)),
        Want(".qzeros", INT32, ((groups, rows // 8),), grouped=True),
        Want(".scales", FLOATS, ((groups, rows),), grouped=True),
        Want(".g_idx", INT32, ((columns,),), optional=not scheme.ordered),
    ]


def _gptq_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    data = _bytes(tensors[".qweight"].T.contiguous())
    zeros = (_numbers(tensors[".qzeros"]).T + scheme.zero_offset) & 15
    groups = tensors.get(".g_idx")
    order = None if groups is None else _order(groups, scheme, shape[1])
    if order is not None:
        data = pack(unpack(data)[:, order])
    return _int4(data, tensors[".scales"].T, zeros, order)


def _gptq_write(scheme: Scheme, weight: Quantized, dtype: torch.dtype) -> Made:
    return {
        ".qweight": lambda: weight.data.view(torch.int32).T.contiguous(),
        ".qzeros": lambda: _joined((_zeros(weight) - scheme.zero_offset & 15).T.contiguous()),
        ".scales": lambda: weight.scales.T.to(dtype).contiguous(),
        ".g_idx": lambda: torch.arange(weight.shape[1], dtype=torch.int32) // weight.group,
    }


def _order(groups: Tensor, scheme: Scheme, columns: int) -> Tensor | None:
    """The permutation that sorts columns by group, from each column's group; None if they are sorted already."""
    size = scheme.group or columns
    known = bool(((groups >= 0) & (groups < columns // size)).all())
    if not known or (torch.bincount(groups, minlength=columns // size) != size).any():
        raise ValueError(f"g_idx does not put {size} columns in each group")
    order = groups.argsort(stable=True)
    return None if torch.equal(order, torch.arange(columns)) else order


# AWQ (gemm): qweight [K, N/8], eight output rows in each int32, in AWQ's own order.

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each of the eight numbers in an int32."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _awq_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    rows, columns = shape
    groups = groups_of(scheme, columns)
    return [
        Want(".qweight", INT32, ((columns, rows // 8),)),
        Want(".qzeros", INT32, ((groups, rows // 8),), grouped=True),
        Want(".scales", FLOATS, ((groups, rows),), grouped=True),
    ]


def _awq_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    data, zeros = (
        _reordered(_numbers(tensors[name]), AWQ_PLACES).T.contiguous() for name in (".qweight", ".qzeros")
    )
    return _int4(pack(data), tensors[".scales"].T, zeros)


def _awq_write(scheme: Scheme, weight: Quantized, dtype: torch.dtype) -> Made:
    return {
        ".qweight": lambda: _joined(_reordered(unpack(weight.data).T, AWQ_ORDER)),
        ".qzeros": lambda: _joined(_reordered(_zeros(weight).T, AWQ_ORDER)),
        ".scales": lambda: weight.scales.T.to(dtype).contiguous(),
    }


def _reordered(codes: Tensor, order: tuple[int, ...]) -> Tensor:
    return codes.unflatten(-1, (-1, 8))[..., list(order)].flatten(-2)  # type: ignore[no-untyped-call, no-any-return]


# compressed-tensors, packed: several numbers in an int32, the last of which is padded. The layout equals the
# common representation's.


def _packed_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    rows, columns = shape
    groups = groups_of(scheme, columns)
    wants = [
        Want(".weight_packed", INT32, ((rows, -(-columns * scheme.bits // 32)),)),
        Want(".weight_scale", FLOATS, ((rows, groups),), grouped=True),
        Want(".weight_shape", (torch.int64, torch.int32), ((2,),), optional=True),
        Want(".weight_g_idx", INT32, ((columns,),), optional=not scheme.ordered),
    ]
    if not scheme.symmetric:
        wants.append(Want(".weight_zero_point", INT32, ((-(-rows // 8), groups),), grouped=True))
    return wants


def _packed_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    rows, columns = shape
    data, scales = _bytes(tensors[".weight_packed"]), tensors[".weight_scale"].float()
    if scheme.bits == 8:
        return Quantized("int8", (data[:, :columns] ^ 128).contiguous().view(torch.int8), scales)
    stored = tensors.get(".weight_zero_point")
    zeros = None if stored is None else _numbers(stored.T.contiguous()).T[:rows]
    groups = tensors.get(".weight_g_idx")
    order = _order(groups, scheme, columns) if groups is not None and scheme.ordered else None
    if order is not None:
        data = pack(unpack(data)[:, order])
    return _int4(data, scales, zeros, order)


def _int4(data: Tensor, scales: Tensor, zeros: Tensor | None, order: Tensor | None = None) -> Quantized:
    if zeros is not None and bool((zeros == SYMMETRIC_ZERO).all()):
        zeros = None
    held = None if zeros is None else zeros.contiguous()
    return Quantized("int4", data, scales.float().contiguous(), held, order)


# One number an element: compressed-tensors' int8 and fp8, and DeepSeek's block-wise fp8.


def _plain_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    rows, columns = shape
    kind = torch.int8 if scheme.format == "int8" else torch.float8_e4m3fn
    if scheme.block is not None:
        shapes: tuple[Shape, ...] = ((-(-rows // scheme.block[0]), -(-columns // scheme.block[1])),)
    elif scheme.group is not None:
        shapes = ((rows, columns // scheme.group),)
    else:
        shapes = ((rows, 1), (rows,)) if scheme.per_row else ((1,), (), (1, 1))
    scale = ".weight_scale_inv" if scheme.format == "block_fp8" else ".weight_scale"
    return [
        Want(".weight", (kind,), (shape,)),
        Want(scale, FLOATS, shapes, grouped=True),
        Want(".weight_zero_point", (torch.int8, kind), ((-1,), (-1, -1)), optional=True),
        Want(".input_scale", FLOATS, ((), (1,)), optional=True),
        Want(".input_zero_point", (torch.int8, kind), ((), (1,)), optional=True),
    ]


def _plain_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    scales = next(tensors[name] for name in (".weight_scale_inv", ".weight_scale") if name in tensors)
    scales = scales.float()
    if scheme.block is not None:
        scales = _even(scales, scheme.block, shape)
    elif scheme.group is None:
        scales = scales.reshape(-1, 1)
    kind: Any = "int8" if scheme.format == "int8" else "fp8"
    return Quantized(kind, tensors[".weight"], scales.contiguous(), activations=scheme.activations)


def _even(scales: Tensor, block: tuple[int, int], shape: Shape) -> Tensor:
    """Scales per block; if the last blocks are partial, the scales of smaller blocks that divide the weight evenly."""
    for axis, (size, whole) in enumerate(zip(block, shape)):
        if whole % size:
            smaller = math.gcd(size, whole)
            places = torch.arange(0, whole, smaller) // size
            scales = scales.index_select(axis, places)
    return scales


def _plain_write(scheme: Scheme, weight: Quantized, dtype: torch.dtype) -> Made:
    return {".weight": lambda: weight.data, ".weight_scale": lambda: weight.scales.to(dtype)}


# MXFP4 as in the release of gpt-oss: all experts of a layer in one tensor, blocks of 16 bytes.


def _mxfp4_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    experts, rows, columns = shape
    blocks = columns // MX_GROUP
    return [
        Want("_blocks", (torch.uint8,), ((experts, rows, blocks, MX_GROUP // 2),)),
        Want("_scales", (torch.uint8,), ((experts, rows, blocks),)),
    ]


def _mxfp4_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    return Quantized("mxfp4", tensors["_blocks"].flatten(-2), tensors["_scales"])


# NF4 of bitsandbytes: two codes a byte in one column, the upper half first; sizes and the mean of the scales as JSON.

NF4_STATE = ".weight.quant_state.bitsandbytes__nf4"
NF4_STATE_BYTES = 256
"""JSON is padded with spaces to this size, which is known before the JSON is."""


def _nf4_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    rows, columns = shape
    scales = rows * groups_of(scheme, columns)
    wants = [
        Want(".weight", (torch.uint8,), ((rows * columns // 2, 1),)),
        Want(
            ".weight.absmax", (torch.uint8 if scheme.nested else torch.float32,), ((scales,),), grouped=True
        ),
        Want(".weight.quant_map", (torch.float32,), ((len(nf4.NF4),),)),
        Want(NF4_STATE, (torch.uint8,), ((NF4_STATE_BYTES,), (-1,))),
    ]
    if scheme.nested:
        blocks = -(-scales // nf4.NESTED_GROUP)
        wants.append(Want(".weight.nested_absmax", (torch.float32,), ((blocks,),)))
        wants.append(Want(".weight.nested_quant_map", (torch.float32,), ((256,),)))
    return wants


def _nf4_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    rows, columns = shape
    try:
        state = json.loads(bytes(tensors[NF4_STATE].tolist()))
        blocks = state["blocksize"], state.get("nested_blocksize", nf4.NESTED_GROUP)
        mean = float(state["nested_offset"]) if scheme.nested else 0.0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its quant_state is no JSON object with its sizes ({error!r})") from None
    if blocks != (scheme.group, nf4.NESTED_GROUP):
        raise ValueError(f"its blocksize is {blocks[0]} and {blocks[1]}; 64 and 256 are supported")
    device = tensors[".weight"].device
    _same_map(tensors[".weight.quant_map"], nf4.values(device), "quant_map")
    data = _swapped(tensors[".weight"].view(rows, columns // 2))
    scales = tensors[".weight.absmax"].view(rows, columns // nf4.GROUP)
    if not scheme.nested:
        return Quantized("nf4", data, scales)
    _same_map(tensors[".weight.nested_quant_map"], nf4.dynamic_map(device), "nested_quant_map")
    nested = torch.cat([torch.tensor([mean], device=device), tensors[".weight.nested_absmax"]])
    return Quantized("nf4", data, scales, nested=nested)


def _same_map(stored: Tensor, ours: Tensor, name: str) -> None:
    if not torch.allclose(stored, ours, rtol=0, atol=1e-6):
        raise ValueError(f"its {name} is not that of NF4 in bitsandbytes")


def _nf4_write(scheme: Scheme, weight: Quantized, dtype: torch.dtype) -> Made:
    codes, nested = weight.scales, weight.nested
    if nested is None:  # the rows of several weights
        codes, nested = nf4.nested(weight.scales)
    return {
        ".weight": lambda: _swapped(weight.data).view(-1, 1),
        ".weight.absmax": lambda: codes.flatten(),
        ".weight.quant_map": lambda: nf4.values(weight.device),
        ".weight.nested_absmax": lambda: nested[1:].contiguous(),
        ".weight.nested_quant_map": lambda: nf4.dynamic_map(weight.device),
        NF4_STATE: lambda: _nf4_state(weight.shape, nested[0].item(), dtype),
    }


def _nf4_state(shape: Shape, mean: float, dtype: torch.dtype) -> Tensor:
    state = {
        "quant_type": "nf4",
        "blocksize": nf4.GROUP,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "nested_blocksize": nf4.NESTED_GROUP,
        "nested_dtype": "float32",
        "nested_offset": mean,
    }
    return torch.tensor(list(json.dumps(state).ljust(NF4_STATE_BYTES).encode()), dtype=torch.uint8)


def _swapped(data: Tensor) -> Tensor:
    """The two halves of each byte exchanged."""
    return data << 4 | data >> 4


# GGUF: rows of blocks of an fp16 scale and 32 numbers. A byte of Q4_0 has number j in its low half and j + 16 in its
# high half.


def _gguf_wants(scheme: Scheme, shape: Shape) -> list[Want]:
    rows, columns = shape
    return [Want(".weight", (torch.uint8,), ((rows, columns // 32 * (2 + 4 * scheme.bits)),))]


def _gguf_read(scheme: Scheme, shape: Shape, tensors: Tensors) -> Quantized:
    rows, columns = shape
    blocks = tensors[".weight"].view(rows, columns // 32, -1)
    scales = blocks[..., :2].contiguous().view(torch.float16).float().view(rows, -1)
    codes = blocks[..., 2:]
    if scheme.bits == 8:
        return Quantized("int8", codes.reshape(shape).view(torch.int8), scales)
    halves = torch.cat([codes & 15, codes >> 4], dim=-1)
    return Quantized("int4", pack(halves.view(shape)), scales)


LAYOUTS: dict[Format, QuantizedLayout] = {
    "gptq": QuantizedLayout(_gptq_wants, _gptq_read, _gptq_write),
    "awq": QuantizedLayout(_awq_wants, _awq_read, _awq_write),
    "packed": QuantizedLayout(_packed_wants, _packed_read),
    "int8": QuantizedLayout(_plain_wants, _plain_read, _plain_write),
    "fp8": QuantizedLayout(_plain_wants, _plain_read, _plain_write),
    "block_fp8": QuantizedLayout(_plain_wants, _plain_read),
    "mxfp4": QuantizedLayout(_mxfp4_wants, _mxfp4_read),
    "nf4": QuantizedLayout(_nf4_wants, _nf4_read, _nf4_write),
    "q8_0": QuantizedLayout(_gguf_wants, _gguf_read),
    "q4_0": QuantizedLayout(_gguf_wants, _gguf_read),
}


def _bytes(packed: Tensor) -> Tensor:
    """int32 [.., C] -> uint8 [.., 4 C], the lowest byte first."""
    return packed.view(torch.uint8)


def _numbers(packed: Tensor) -> Tensor:
    """int32 [.., C] -> its 4-bit numbers, uint8 [.., 8 C]."""
    return unpack(_bytes(packed.contiguous()))


def _joined(codes: Tensor) -> Tensor:
    """4-bit numbers uint8 [.., 8 C] -> int32 [.., C]."""
    return pack(codes).contiguous().view(torch.int32)


def _zeros(weight: Quantized) -> Tensor:
    zeros = weight.with_zeros().zeros
    assert zeros is not None
    return zeros
