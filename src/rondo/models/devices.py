"""Where tensors are, by the names that people write."""

from __future__ import annotations

import torch

from rondo.base.errors import ConfigError


def device_named(name: str | torch.device) -> torch.device:
    """A device that tensors can be put on now, else an error that says what to write. `auto` is a GPU where torch has
    one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        usable = torch.empty(1, device=device).device.type != "meta"
    except (RuntimeError, AssertionError):  # torch has both for what it was not built for
        usable = False
    if usable:
        return device
    raise ConfigError(
        f"device {str(name)[:80]!r} is not one that torch can use here: write auto, cpu, cuda or cuda:1.",
        param="device",
    )
