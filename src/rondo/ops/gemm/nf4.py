"""NF4 (QLoRA, arXiv 2305.14314): 4-bit codes for numbers at the quantiles of a normal distribution, one scale for 64
columns, and 8-bit scales of these scales ("double quantization"). Codes and values are those of bitsandbytes.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 64
"""Columns that share a scale."""
NESTED_GROUP = 256
"""Scales that share a scale."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_LEAST = 1e-38
"""Smallest divisor, for groups of zeros."""


@cache
def values(device: torch.device) -> Tensor:
    """The sixteen numbers in ascending order."""
    return torch.tensor(NF4, device=device)


@cache
def _pairs(device: torch.device) -> Tensor:
    """[256, 2]: the numbers of the two codes in a byte, the lower half first."""
    code = torch.arange(256, device=device)
    return torch.stack([values(device)[code & 15], values(device)[code >> 4]], dim=1)


@cache
def dynamic_map(device: torch.device) -> Tensor:
    """The 256 numbers of 8-bit scales in ascending order (arXiv 1511.04561): a sign, a decimal exponent, and a linear
    fraction with the remaining bits."""
    numbers = [torch.tensor([0.0, 1.0])]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        middles = 10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2)
        numbers += [middles, -middles]
    return torch.cat(numbers).sort().values.to(device)


def numbers(data: Tensor) -> Tensor:
    """uint8 [.., K / 2] -> fp32 [.., K], without scales."""
    return F.embedding(data.int(), _pairs(data.device)).flatten(-2)


def codes(groups: Tensor, scales: Tensor) -> Tensor:
    """fp32 [.., 64] and its largest magnitudes [..] -> the nearest codes, uint8 [.., 64]."""
    table = values(groups.device)
    scaled = groups * (1 / scales.clamp(min=_LEAST))[..., None]
    return torch.bucketize(scaled, (table[:-1] + table[1:]) / 2, out_int32=True).to(torch.uint8)


def nested(scales: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 scales [N, G] -> their 8-bit codes, and their mean followed by the scale of each 256 of them."""
    table, mean = dynamic_map(scales.device), scales.mean()
    flat = (scales - mean).flatten()
    blocks = F.pad(flat, (0, -len(flat) % NESTED_GROUP)).view(-1, NESTED_GROUP)
    largest = blocks.abs().amax(-1)
    scaled = blocks * (1 / largest.clamp(min=_LEAST))[:, None]
    found = torch.bucketize(scaled, (table[:-1] + table[1:]) / 2, out_int32=True).to(torch.uint8)
    return found.flatten()[: len(flat)].view(scales.shape), torch.cat([mean[None], largest])


def plain_scales(codes: Tensor, nested: Tensor) -> Tensor:
    """8-bit codes [.., N, G] and `nested` [.., 1 + blocks] -> fp32 scales [.., N, G]."""
    found = dynamic_map(codes.device)[codes.int()].flatten(-2)
    largest = nested[..., 1:].repeat_interleave(NESTED_GROUP, -1)[..., : found.shape[-1]]
    return (found * largest + nested[..., :1]).view(codes.shape)
