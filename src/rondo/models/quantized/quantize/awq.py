"""AWQ (Lin et al., 2023): columns whose inputs are large are made larger before rounding, so that less is lost of what
counts, and what makes the inputs is made smaller by as much; then each group's range is cut to what loses least."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rondo.models.quantized.quantize.rounding import affine_grid, codes_of, int4, values_of
from rondo.ops import Quantized

STEPS = 20
"""Exponents tried, from 0 (no change) to 1 (all inputs alike)."""
CUTS = tuple(1 - 0.05 * step for step in range(11))
"""Shares of a group's range that are tried."""


def factors(
    pairs: Sequence[tuple[Tensor, Tensor]], sizes: Tensor, group: int, scale_type: torch.dtype
) -> Tensor:
    """What to multiply the columns [K] of weights by, each given with the products [K, K] of its inputs. `sizes` [K] is
    the mean magnitude of each input."""
    best, least = torch.ones_like(sizes), torch.inf
    for step in range(STEPS):
        tried = sizes.clamp(min=1e-4) ** (step / STEPS)
        tried = (tried / (tried.max() * tried.min()).sqrt()).clamp(1e-4, 1e4)
        lost = sum(_lost(weight, tried, inputs, group, scale_type) for weight, inputs in pairs)
        if lost < least:
            best, least = tried, lost
    return best


def _lost(weight: Tensor, tried: Tensor, inputs: Tensor, group: int, scale_type: torch.dtype) -> float:
    """The square of what the outputs change by."""
    groups = (weight * tried).unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    scales, zeros = affine_grid(groups, scale_type)
    rounded = values_of(codes_of(groups, scales, zeros), scales, zeros).flatten(1) / tried
    apart = rounded - weight
    return float(((apart @ inputs) * apart).sum())


def quantize(
    weight: Tensor, inputs: Tensor, group: int, scale_type: torch.dtype, cut: bool = True
) -> Quantized:
    """weight [N, K] fp32, its columns multiplied already, and inputs [K, K] divided likewise."""
    groups = weight.unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    own = _blocks(inputs, group)
    best = torch.full(groups.shape[:2], torch.inf)
    scales, zeros = affine_grid(groups, scale_type)
    for share in CUTS if cut else CUTS[:1]:
        low, high = (share * end(-1, keepdim=True) for end in (groups.amin, groups.amax))
        tried = affine_grid(groups.clamp(low, high), scale_type)
        apart = values_of(codes_of(groups, *tried), *tried) - groups
        lost = (torch.einsum("ngk,gkl->ngl", apart, own) * apart).sum(-1)
        better = lost < best
        best = torch.where(better, lost, best)
        scales, zeros = torch.where(better, tried[0], scales), torch.where(better, tried[1], zeros)
    return int4(codes_of(groups, scales, zeros).flatten(1), scales, zeros)


def _blocks(inputs: Tensor, group: int) -> Tensor:
    """[K, K] -> the squares along the diagonal, [K / g, g, g]."""
    starts = range(0, len(inputs), group)
    return torch.stack([inputs[start : start + group, start : start + group] for start in starts])
