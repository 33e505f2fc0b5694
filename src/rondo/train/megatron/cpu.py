"""Megatron-Core where there is no CUDA device: it asks CUDA for the device that its tensors go to."""

from __future__ import annotations

import torch


def without_cuda() -> None:
    """Answers "cpu" in CUDA's place, for this process."""
    if not torch.cuda.is_available():
        torch.cuda.current_device = _cpu  # type: ignore[assignment]


def _cpu() -> torch.device:
    return torch.device("cpu")
