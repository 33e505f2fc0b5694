"""Triton's versions of `row_logprobs` and `choose_tokens`, registered with the operations."""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.ops.triton.at_hand import launch, power_of_two, takes
from rondo.ops.vocabulary.draw import choose_tokens
from rondo.ops.vocabulary.logprobs import row_logprobs

SLICE = 4096
"""Logits of a row in one program; a row's slices are distributed over the GPU."""


def _logprobs_can(logits: Tensor, tokens: Tensor, scale: Tensor | None) -> bool:
    fits = tokens.dtype == torch.int64 and (scale is None or scale.dtype == torch.float32)
    return fits and takes(logits) and tokens.device == logits.device


@row_logprobs.fast(_logprobs_can)
def row_logprobs_triton(logits: Tensor, tokens: Tensor, scale: Tensor | None) -> Tensor:
    from rondo.ops.triton.kernels.vocabulary import score_tokens, sum_slices

    logits, tokens = _neighbours(logits), tokens.contiguous()
    rows, width = logits.shape
    slices = -(-width // SLICE)
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    tops, masses = (torch.empty(rows, slices, dtype=torch.float32, device=logits.device) for _ in range(2))
    scales = tops if scale is None else scale.expand(rows, 1)
    strides = logits.stride(0), scales.stride(0)
    launch(
        sum_slices,
        (rows, slices),
        logits,
        *(logits, scales, tops, masses, *strides, width),
        SLICE=SLICE,
        SCALED=scale is not None,
        num_warps=8,
    )
    launch(
        score_tokens,
        (rows,),
        logits,
        *(logits, tokens, scales, tops, masses, out, *strides, width, slices),
        SLICES=power_of_two(slices),
        SCALED=scale is not None,
        num_warps=1,
    )
    return out


def _choose_can(
    logits: Tensor,
    temperatures: Tensor,
    draws: Tensor,
    scales: Tensor | None = None,
    masks: Tensor | None = None,
) -> bool:
    given = [logits, temperatures, draws] if scales is None else [logits, temperatures, draws, scales]
    fits = masks is None or (masks.dtype == torch.int32 and masks.device == logits.device)
    return fits and logits.dtype == torch.float32 and takes(*given)


@choose_tokens.fast(_choose_can)
def choose_triton(
    logits: Tensor,
    temperatures: Tensor,
    draws: Tensor,
    scales: Tensor | None = None,
    masks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    from rondo.ops.triton.kernels.vocabulary import choose_rows, look_through

    logits = _neighbours(logits)
    rows, width = logits.shape
    slices = -(-width // SLICE)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    bests, masses = (torch.empty(rows, slices, dtype=torch.float32, device=logits.device) for _ in range(2))
    places = torch.empty(rows, slices, dtype=torch.int64, device=logits.device)
    left = tokens if masks is None else masks.contiguous()
    words = 0 if masks is None else masks.shape[1]
    given = logits, left, temperatures.contiguous()
    launch(
        look_through,
        (rows, slices),
        logits,
        *(*given, bests, places, masses, logits.stride(0), words, width),
        SLICE=SLICE,
        MASKED=masks is not None,
        num_warps=8,
    )
    launch(
        choose_rows,
        (rows,),
        logits,
        *(*given, draws.contiguous(), bests, places, masses, tokens, logits.stride(0), words, width, slices),
        SLICE=SLICE,
        SLICES=power_of_two(slices),
        MASKED=masks is not None,
        num_warps=8,
    )
    if scales is None:
        return tokens, None
    return tokens, row_logprobs(logits, tokens.clamp(min=0), scales[:, None])


def _neighbours(logits: Tensor) -> Tensor:
    """[R, V] with contiguous rows."""
    return logits if logits.stride(1) == 1 else logits.contiguous()
