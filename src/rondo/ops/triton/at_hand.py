"""Availability of Triton's kernels, and launching them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rondo.ops.native.build.readable import unwatched

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def interpreted() -> bool:
    """Whether Triton interprets its kernels; only then do they accept tensors on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def missing() -> str | None:
    """The reason why CUDA tensors use plain torch; None if the kernels are available."""
    if os.environ.get("RONDO_TRITON", "1") == "0":
        return "RONDO_TRITON=0 says to do without Triton"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton cannot be imported ({error}): pip install triton"
    return None


def version() -> str:
    """Triton's version for display."""
    return f"Triton {metadata.version('triton')}{', interpreted' * interpreted()}"


def on_device(device: torch.device) -> bool:
    """Whether the kernels run on this device."""
    fits = device.type == "cuda" or (interpreted() and device.type == "cpu")
    return fits and missing() is None


def takes(x: Tensor, *others: Tensor) -> bool:
    """Whether the tensors are plain floats of one dtype on one device that the kernels support."""
    return (
        x.dtype in FLOATS
        and unwatched(x, *others)
        and all(each.device == x.device for each in others)
        and on_device(x.device)
    )


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *arguments: Any, **options: Any) -> None:
    """Launches a kernel on the device of `like`; does nothing for an empty grid."""
    if 0 in grid:
        return
    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        kernel[grid](*arguments, **options)


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def warps(width: int) -> int:
    """Number of warps for a row or tile of `width` numbers."""
    return max(1, min(8, width // 256))


def with_gradient(
    forward: Callable[..., Tensor], reference: Callable[..., Tensor], *tensors: Tensor
) -> Tensor:
    """forward(*tensors), with the gradient of the reference, which is recomputed from the same tensors."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        result: Tensor = _ByReference.apply(forward, reference, *tensors)  # type: ignore[no-untyped-call]
        return result
    return forward(*tensors)


class _ByReference(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Any, reference: Any, *tensors: Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        ctx.reference = reference
        return forward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[2:]
        tensors = [
            x.detach().requires_grad_(wants) for x, wants in zip(ctx.saved_tensors, wanted, strict=True)
        ]
        with torch.enable_grad():
            outputs = ctx.reference(*tensors)
        found = iter(torch.autograd.grad(outputs, [x for x in tensors if x.requires_grad], grads))
        return None, None, *(next(found) if wants else None for wants in wanted)
