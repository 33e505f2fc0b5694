"""Interface for attention: the caller passes an `attend` to the model, which is independent of the implementation."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rondo.ops import AttentionSpec, packed_attention


class SequenceLengths(Protocol):
    @property
    def lengths(self) -> Tensor:
        """Current length [T] of the sequence that each token belongs to; only length-dependent RoPE reads it."""
        ...


class Attend(SequenceLengths, Protocol):
    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q [T, H, D], k [T, KV, D], v [T, KV, Dv] -> [T, H, Dv]."""
        ...


class Packed:
    """Attention for training and scoring: whole packed documents, without a KV cache."""

    def __init__(self, cu_seqlens: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.cu_seqlens = list(cu_seqlens)
        self.device = device

    @property
    def lengths(self) -> Tensor:
        sizes = torch.tensor(self.cu_seqlens, device=self.device).diff()
        return sizes.repeat_interleave(sizes)

    @property
    def positions(self) -> Tensor:
        """[T] positions that start at 0 in each document."""
        starts = torch.tensor(self.cu_seqlens[:-1], device=self.device)
        sizes = torch.tensor(self.cu_seqlens, device=self.device).diff()
        return torch.arange(self.cu_seqlens[-1], device=self.device) - starts.repeat_interleave(sizes)

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return packed_attention(spec, q, k, v, self.cu_seqlens, sinks)
