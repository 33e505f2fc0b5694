"""Pages of a KV cache: rows of keys, or of values, by block and in the type they are kept in.

int8 and fp8 (e4m3) keep one fp32 scale a row, that is a token and key head: the row's largest number becomes the type's
largest. A row that is not finite has a scale that is not finite and zeros, so NaN shows where it is read, and taking it
out means looking at scales alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The types with scales, and the largest number of each."""
SCALE = torch.float32


@dataclass(frozen=True)
class Pages:
    """data [blocks, size, KV, D], fp8 as its bytes, and scales [blocks, size, KV] where `dtype` has them."""

    dtype: torch.dtype
    data: Tensor
    scales: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All there is to a block, for who moves blocks: the first axis of each is the block."""
        return (self.data,) if self.scales is None else (self.data, self.scales)

    def write(self, slots: Tensor, rows: Tensor) -> Tensor:
        """Puts rows [T, KV, D] at slots [T]; returns them as they will be read again."""
        data, scales = encode(rows, self.dtype)
        self.data.flatten(0, 1).index_copy_(0, slots, data)
        if self.scales is not None and scales is not None:
            self.scales.flatten(0, 1).index_copy_(0, slots, scales)
        return rows if rows.dtype == self.dtype else decode(data, scales, self.dtype, rows.dtype)

    def gather(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """slots [B, L] -> [B, L, KV, D] in `dtype`."""
        flat = slots.flatten()
        data = self.data.flatten(0, 1).index_select(0, flat)
        scales = None if self.scales is None else self.scales.flatten(0, 1).index_select(0, flat)
        return decode(data, scales, self.dtype, dtype).view(*slots.shape, *data.shape[1:])

    def clean(self, blocks: Tensor) -> None:
        """Takes NaN and infinity out of blocks."""
        numbers = self.data if self.scales is None else self.scales
        numbers[blocks] = numbers[blocks].nan_to_num(0.0, 0.0, 0.0)


def kept_as(dtype: torch.dtype) -> torch.dtype:
    """What a page's data tensor is of: few operations take fp8, and moving bytes needs none of them."""
    return torch.uint8 if dtype == torch.float8_e4m3fn else dtype


def row_bytes(dim: int, dtype: torch.dtype) -> int:
    """Memory of one row of `dim` numbers, its scale included."""
    return dim * dtype.itemsize + (SCALE.itemsize if dtype in LARGEST else 0)


def encode(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """rows [..., D] -> (data [..., D], scales [...])."""
    largest = LARGEST.get(dtype)
    if largest is None:
        return rows.to(dtype), None
    rows = rows.to(SCALE)
    top = rows.abs().amax(-1)
    inverse = top.new_tensor(largest) / top
    usable = inverse.isfinite() & (inverse > 0)
    numbers = torch.where(usable[..., None], rows * inverse[..., None], 0.0)
    data = numbers.round().to(dtype) if dtype == torch.int8 else numbers.to(dtype).view(torch.uint8)
    return data, top * (1 / largest)


def decode(data: Tensor, scales: Tensor | None, kept: torch.dtype, dtype: torch.dtype) -> Tensor:
    if scales is None:
        return data.to(dtype)
    return (data.view(kept).to(SCALE) * scales[..., None]).to(dtype)
