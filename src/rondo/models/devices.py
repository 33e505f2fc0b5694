"""Devices and number formats by name."""

from __future__ import annotations

from typing import cast

import torch

from rondo.base.errors import ConfigError


def device_named(name: str | torch.device) -> torch.device:
    """A usable device; an unusable name raises an error that lists the valid ones. `auto` is a GPU if torch has one,
    else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        usable = torch.empty(1, device=device).device.type != "meta"
    except (RuntimeError, AssertionError):  # torch raises either for a backend that it was built without
        usable = False
    if usable:
        return device
    raise ConfigError(
        f"device {str(name)[:80]!r} is not one that torch can use here: write auto, cpu, cuda or cuda:1.",
        param="device",
    )


def torch_dtype(name: str) -> torch.dtype | None:
    """None for `auto`: the format of the checkpoint."""
    return None if name == "auto" else cast(torch.dtype, getattr(torch, name))
