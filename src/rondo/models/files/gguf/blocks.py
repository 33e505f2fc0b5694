"""Number formats of GGUF tensors, converted to and from fp32 by blocks: the same results as ggml's, bit for bit.

A tensor of blocks is uint8 [.., bytes of a row]. Each function below gets the blocks [n, bytes] of several rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rondo.base.errors import ModelError
from rondo.base.storage.gguf import READABLE, BlockType

TYPES: dict[str, BlockType] = {each.name: each for each in READABLE.values()}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types that are dtypes of torch."""


def decoded(raw: Tensor, type_name: str) -> Tensor:
    """uint8 [.., bytes] -> fp32 [.., numbers]; plain types keep their dtype."""
    if type_name in PLAIN:
        return raw.view(PLAIN[type_name])
    blocks = raw.reshape(-1, TYPES[type_name].size)
    return DECODERS[type_name](blocks).view(*raw.shape[:-1], -1)


def encoded(numbers: Tensor, type_name: str) -> Tensor:
    """[.., numbers] of any dtype -> uint8 [.., bytes]."""
    if type_name in PLAIN:
        return _finite(numbers.to(PLAIN[type_name]), type_name).contiguous().view(torch.uint8)
    blocks = numbers.float().reshape(-1, TYPES[type_name].numbers)
    return ENCODERS[type_name](blocks).view(*numbers.shape[:-1], -1)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The fp16 number at this byte of each block, as fp32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """[n, b] -> [n, 2 b]: the low halves of all bytes, then the high halves."""
    return torch.cat([data & 15, data >> 4], dim=1)


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_fifths(blocks[:, 2:6], blocks[:, 6:]).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _fifths(blocks[:, 4:8], blocks[:, 8:]).float() + _half(blocks, 2)


def _fifths(high: Tensor, low: Tensor) -> Tensor:
    """5-bit numbers from 4 bytes of fifth bits and 16 bytes of nibbles."""
    bits = (high[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return _nibbles(low) | bits.flatten(1) << 4


def _q4_k(blocks: Tensor) -> Tensor:
    scales, mins = _k_scales(blocks)
    return _grouped(scales, _pairs(blocks[:, 16:]), mins)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, mins = _k_scales(blocks)
    bits = (blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[None, :, None]) & 1
    return _grouped(scales, _pairs(blocks[:, 48:]) | bits << 4, mins)


def _pairs(data: Tensor) -> Tensor:
    """128 bytes -> [n, 8, 32]: sub-blocks 2i and 2i + 1 are the low and high halves of 32 bytes."""
    rows = data.reshape(-1, 4, 1, 32)
    return torch.cat([rows & 15, rows >> 4], dim=2).view(-1, 8, 32)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of the 8 sub-blocks, 6 bits each in 12 bytes."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([low & 63, (high & 15) | (low >> 2 & 48)], dim=1)
    mins = torch.cat([middle & 63, (high >> 4) | (middle >> 2 & 48)], dim=1)
    return _half(blocks, 0) * scales.float(), _half(blocks, 2) * mins.float()


def _grouped(scales: Tensor, numbers: Tensor, mins: Tensor) -> Tensor:
    return (scales[:, :, None] * numbers.float() - mins[:, :, None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """Per half block: 64 bytes of low nibbles, 32 bytes of two high bits for each of four runs of 32 numbers."""
    low, high = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    nibbles = torch.cat([low & 15, low >> 4], dim=2).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[None, None, :, None]
    numbers = (nibbles | ((high >> shifts) & 3) << 4).reshape(-1, 16, 16).float() - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return (scales[:, :, None] * numbers).flatten(1)


def _to_q8_0(numbers: Tensor) -> Tensor:
    scale = numbers.abs().amax(1, keepdim=True) / 127
    codes = numbers * torch.where(scale == 0, 0.0, 1 / scale)
    rounded = codes.abs().add(0.5).floor() * codes.sign()
    return torch.cat([_as_half(scale), rounded.to(torch.int8).view(torch.uint8)], dim=1)


def _to_q4_0(numbers: Tensor) -> Tensor:
    """The number of the largest magnitude becomes -8."""
    largest = numbers.gather(1, numbers.abs().argmax(1, keepdim=True))
    scale = largest / -8
    factor = torch.where(scale == 0, 0.0, 1 / scale)
    codes = (numbers.double() * factor.double() + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    return torch.cat([_as_half(scale), codes[:, :16] | codes[:, 16:] << 4], dim=1)


def _as_half(scale: Tensor) -> Tensor:
    return _finite(scale.half(), "a quantized type").view(torch.uint8)


def _finite(numbers: Tensor, type_name: str) -> Tensor:
    if not bool(numbers.isfinite().all()):
        raise ModelError(f"a weight is not finite, or too large for {type_name}: use bf16", param="type")
    return numbers


DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
ENCODERS: dict[str, Callable[[Tensor], Tensor]] = {"Q8_0": _to_q8_0, "Q4_0": _to_q4_0}
