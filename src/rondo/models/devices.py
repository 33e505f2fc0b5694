"""Devices by name."""

from __future__ import annotations

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
