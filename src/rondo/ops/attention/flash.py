"""Partial attention on CUDA by PyTorch's FlashAttention, registered with the operations.

Its backward kernel uses outputs and log-sum-exps as passed in, so passing those for the whole attention makes a part's
gradients exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec
from rondo.ops.attention.parts import attention_part, attention_part_gradients

WIDEST = 256
"""Maximum head dimension of FlashAttention."""
OLDEST = (8, 0)
"""Minimum compute capability of FlashAttention."""


def _can(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Sequence[int]) -> bool:
    return (
        q.is_cuda
        and len(q) > 0
        and q.dtype in (torch.float16, torch.bfloat16)
        and spec.softcap is None
        and spec.head_dim == spec.value_dim <= WIDEST
        and spec.head_dim % 8 == 0
        and torch.backends.cuda.is_flash_attention_available()
        and _capability(q.device) >= OLDEST
    )


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@attention_part.fast(_can)
def attention_part_flash(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Sequence[int]
) -> tuple[Tensor, Tensor]:
    out, logarithms, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, *_documents(cu_seqlens, q.device), 0.0, spec.window is None, False, **_options(spec)
    )
    return out, logarithms.T


def _can_back(
    spec: AttentionSpec,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logarithms: Tensor,
    cu_seqlens: Sequence[int],
) -> bool:
    return _can(spec, q, k, v, cu_seqlens)


@attention_part_gradients.fast(_can_back)
def attention_part_gradients_flash(
    spec: AttentionSpec,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logarithms: Tensor,
    cu_seqlens: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    # Random state is unused without dropout.
    state, unused = torch.zeros(2, dtype=torch.uint64, device=q.device), q.new_empty(0)
    of_q, of_k, of_v = torch.ops.aten._flash_attention_backward(
        *(grad.contiguous(), q, k, v, out, logarithms.T.contiguous()),
        *_documents(cu_seqlens, q.device),
        *(0.0, spec.window is None, state, unused),
        **_options(spec),
    )
    return of_q, of_k, of_v


def _documents(cu_seqlens: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    edges = torch.tensor(cu_seqlens, dtype=torch.int32, device=device)
    longest = max(stop - start for start, stop in pairwise(cu_seqlens))
    return edges, edges, longest, longest


def _options(spec: AttentionSpec) -> dict[str, Any]:
    """The left window size of FlashAttention excludes the query's own key."""
    left = -1 if spec.window is None else spec.window - 1
    return {"scale": spec.scale, "window_size_left": left, "window_size_right": 0}
