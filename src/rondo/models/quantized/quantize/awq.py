"""AWQ (Lin et al., 2023): columns with large inputs are scaled up before rounding, so that their relative error is
smaller, and the producer of the inputs is scaled down by the same factors. Then each group's range is clipped where the
error is least."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rondo.models.quantized.quantize.rounding import affine_grid, codes_of, int4, values_of
from rondo.ops import Quantized

STEPS = 20
"""Number of exponents searched, from 0 (no scaling) to 1 (all inputs equally large)."""
CUTS = tuple(1 - 0.05 * step for step in range(11))
"""Shares of a group's range in the search for the best clipping."""


def factors(
    pairs: Sequence[tuple[Tensor, Tensor]], sizes: Tensor, group: int, scale_type: torch.dtype
) -> Tensor:
    """Factors [K] for the columns of the weights, each paired with the summed products [K, K] of its inputs. `sizes`
    [K] is the mean magnitude of each input."""
    best, least = torch.ones_like(sizes), torch.inf
    for step in range(STEPS):
        tried = sizes.clamp(min=1e-4) ** (step / STEPS)
        tried = (tried / (tried.max() * tried.min()).sqrt()).clamp(1e-4, 1e4)
        lost = sum(_lost(weight, tried, inputs, group, scale_type) for weight, inputs in pairs)
        if lost < least:
            best, least = tried, lost
    return best


def _lost(weight: Tensor, tried: Tensor, inputs: Tensor, group: int, scale_type: torch.dtype) -> float:
    """The squared error of the outputs."""
    groups = (weight * tried).unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    scales, zeros = affine_grid(groups, scale_type)
    rounded = values_of(codes_of(groups, scales, zeros), scales, zeros).flatten(1) / tried
    apart = rounded - weight
    return float(((apart @ inputs) * apart).sum())


def quantize(
    weight: Tensor, inputs: Tensor, group: int, scale_type: torch.dtype, cut: bool = True
) -> Quantized:
    """weight [N, K] fp32, with its columns scaled already, and inputs [K, K], scaled inversely."""
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
    """[K, K] -> the square blocks along the diagonal, [K / g, g, g]."""
    starts = range(0, len(inputs), group)
    return torch.stack([inputs[start : start + group, start : start + group] for start in starts])
