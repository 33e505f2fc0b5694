"""Megatron-Core without a CUDA device: it requests the device of its tensors and random states from CUDA."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def without_cuda() -> None:
    """Replaces CUDA's current device by "cpu", and its random states by empty ones, for this process."""
    if torch.cuda.is_available():
        return
    from megatron.core.tensor_parallel import random

    torch.cuda.current_device = _cpu  # type: ignore[assignment]
    torch.cuda.synchronize = _ignore
    random._get_cuda_rng_state = _no_state
    random._set_cuda_rng_state = _ignore


def on_device() -> AbstractContextManager[Any]:
    """Context in which tensors requested on "cuda" are on the device that there is."""
    return nullcontext() if torch.cuda.is_available() else _CudaAsCpu()


class _CudaAsCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            return args[0]
        if kwargs.get("device") == "cuda":
            kwargs = kwargs | {"device": "cpu"}
        return func(*args, **kwargs)


def _cpu() -> torch.device:
    return torch.device("cpu")


def _no_state(*_: Any, **__: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _ignore(*_: Any, **__: Any) -> None:
    """Activation checkpointing restores the CPU's generator itself."""
