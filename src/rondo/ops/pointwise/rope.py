"""Rotary position embedding with the scalings of published checkpoints.

The formulas follow the papers and the checkpoints' configuration files: linear interpolation, dynamic NTK, YaRN, Llama
3's frequency bands and LongRoPE. Frequencies are computed in fp32 once a spec and device.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from rondo.ops.dispatch import Op

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one kind of layer: the number of rotated dimensions, and their frequencies."""

    dim: int
    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    interleaved: bool = False
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on the sequence length."""
        return self.kind in ("dynamic", "longrope")


def rope_tables(
    spec: RopeSpec, positions: Tensor, lengths: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, dim/2] for tokens at `positions` [T] in sequences of `lengths` [T]."""
    angles = rope_angles(spec, positions, lengths)
    cos, sin = angles.cos(), angles.sin()
    if spec.attention_factor != 1.0:
        cos, sin = cos * spec.attention_factor, sin * spec.attention_factor
    return cos[:, None, :].to(dtype), sin[:, None, :].to(dtype)


def rope_angles(spec: RopeSpec, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Rotation angle of each pair of dimensions, [T, dim/2]."""
    if spec.by_length:
        assert lengths is not None
        return positions[:, None].float() * _frequencies_by_length(spec, lengths)
    return positions[:, None].float() * _frequencies(spec, positions.device)


@Op
def rotate(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first `spec.dim` dimensions of x [T, heads, D]; the rest pass through.

    Interleaved pairs are returned de-interleaved (all firsts, then all seconds). Queries and keys have the same order,
    so their products are unchanged, and a second shuffle is unnecessary.
    """
    rotated = x if x.shape[-1] == spec.dim else x[..., : spec.dim]
    if spec.interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated.chunk(2, dim=-1)
    parts = [first * cos - second * sin, second * cos + first * sin]
    if x.shape[-1] != spec.dim:
        parts.append(x[..., spec.dim :])
    return torch.cat(parts, dim=-1)


@lru_cache(maxsize=64)
def _frequencies(spec: RopeSpec, device: torch.device) -> Tensor:
    # Cached tensors outlive the call that created them: inference tensors would break a later backward pass.
    with torch.inference_mode(False), torch.no_grad():
        return _scaled_frequencies(spec, device)


def _scaled_frequencies(spec: RopeSpec, device: torch.device) -> Tensor:
    base = _inverse(spec.theta, spec.dim, device)
    if spec.kind == "linear":
        return base / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, base)
    if spec.kind == "yarn":
        return _yarn(spec, base)
    return base


def _inverse(theta: float, dim: int, device: torch.device) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64, device=device).float() / dim
    return 1.0 / (theta**exponents)


def _llama3(spec: RopeSpec, base: Tensor) -> Tensor:
    wavelength = 2 * math.pi / base
    longest = spec.original_max_positions / spec.low_freq_factor
    shortest = spec.original_max_positions / spec.high_freq_factor
    blend = (spec.original_max_positions / wavelength - spec.low_freq_factor) / (
        spec.high_freq_factor - spec.low_freq_factor
    )
    smooth = (1 - blend) * base / spec.factor + blend * base
    scaled = torch.where(wavelength > longest, base / spec.factor, base)
    return torch.where((wavelength <= longest) & (wavelength >= shortest), smooth, scaled)


def _yarn(spec: RopeSpec, base: Tensor) -> Tensor:
    def dimension_of(rotations: float) -> float:
        turns = spec.original_max_positions / (rotations * 2 * math.pi)
        return spec.dim * math.log(turns) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001
    ramp = (
        (torch.arange(spec.dim // 2, dtype=torch.float32, device=base.device) - low) / (high - low)
    ).clamp(0, 1)
    return (base / spec.factor) * ramp + base * (1 - ramp)


def _frequencies_by_length(spec: RopeSpec, lengths: Tensor) -> Tensor:
    """[T, dim/2] frequencies for tokens in sequences of these lengths."""
    beyond = lengths > spec.original_max_positions
    base = _inverse(spec.theta, spec.dim, lengths.device)
    if spec.kind == "longrope":
        short = base / torch.tensor(spec.short_factor, device=lengths.device)
        long = base / torch.tensor(spec.long_factor, device=lengths.device)
        return torch.where(beyond[:, None], long, short)
    reach = (
        spec.factor * lengths.clamp(min=spec.original_max_positions).double() / spec.original_max_positions
    )
    theta = spec.theta * (reach - (spec.factor - 1)) ** (spec.dim / (spec.dim - 2))
    exponents = torch.arange(0, spec.dim, 2, dtype=torch.int64, device=lengths.device).double() / spec.dim
    return (1.0 / theta[:, None] ** exponents).float()
