"""Megatron-Core without a CUDA device: it requests the device of its tensors from CUDA."""

from __future__ import annotations

import torch


def without_cuda() -> None:
    """Makes CUDA's current device "cpu", for this process."""
    if not torch.cuda.is_available():
        torch.cuda.current_device = _cpu  # type: ignore[assignment]


def _cpu() -> torch.device:
    return torch.device("cpu")
