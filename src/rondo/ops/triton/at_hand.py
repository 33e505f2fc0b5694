"""Whether Triton's kernels run here, and calling them."""

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
    """Whether Triton interprets its kernels: then, and only then, they take tensors on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def missing() -> str | None:
    """Why CUDA tensors go through plain torch; None where the kernels take them."""
    if os.environ.get("RONDO_TRITON", "1") == "0":
        return "RONDO_TRITON=0 says to do without Triton"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton cannot be imported ({error}): pip install triton"
    return None


def version() -> str:
    """As a person reads it."""
    return f"Triton {metadata.version('triton')}{', interpreted' * interpreted()}"


def on_device(device: torch.device) -> bool:
    """Whether tensors that are there meet the kernels."""
    fits = device.type == "cuda" or (interpreted() and device.type == "cpu")
    return fits and missing() is None


def takes(x: Tensor, *others: Tensor) -> bool:
    """Whether they are plain floats of one type on one device where the kernels run."""
    return (
        x.dtype in FLOATS
        and unwatched(x, *others)
        and all(each.device == x.device for each in others)
        and on_device(x.device)
    )


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *arguments: Any, **options: Any) -> None:
    """On the device that `like` is on; nothing where there is nothing to do."""
    if 0 in grid:
        return
    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        kernel[grid](*arguments, **options)


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def warps(width: int) -> int:
    """For a row, or a tile, of so many numbers."""
    return max(1, min(8, width // 256))


def with_gradient(
    forward: Callable[..., Tensor], reference: Callable[..., Tensor], *tensors: Tensor
) -> Tensor:
    """forward(*tensors), whose gradient is that of the reference, computed again from the same tensors."""
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
