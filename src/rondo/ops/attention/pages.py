"""Pages of a KV cache: rows of keys or of values, by block, in the dtype of the cache.

int8 and fp8 (e4m3) store one fp32 scale a row, that is for each token and key head, which maps the row's largest
magnitude to the dtype's maximum. A non-finite row is stored as zeros with a non-finite scale, so that reads return NaN,
and cleaning checks scales only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Dtypes with scales, and the maximum of each."""
SCALE = torch.float32


@dataclass(frozen=True)
class Pages:
    """data [blocks, size, KV, D], fp8 as bytes, and scales [blocks, size, KV] if `dtype` has them."""

    dtype: torch.dtype
    data: Tensor
    scales: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the pages, for moving blocks; the first axis of each is the block."""
        return (self.data,) if self.scales is None else (self.data, self.scales)

    def write(self, slots: Tensor, rows: Tensor) -> Tensor:
        """Writes rows [T, KV, D] to slots [T]; returns them as later reads will return them."""
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
        """Replaces NaN and infinity in blocks by 0."""
        numbers = self.data if self.scales is None else self.scales
        numbers[blocks] = numbers[blocks].nan_to_num(0.0, 0.0, 0.0)


def kept_as(dtype: torch.dtype) -> torch.dtype:
    """Dtype of a page's data tensor: bytes for fp8, which few operations support."""
    return torch.uint8 if dtype == torch.float8_e4m3fn else dtype


def row_bytes(dim: int, dtype: torch.dtype) -> int:
    """Bytes of one row of `dim` numbers, including its scale."""
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
