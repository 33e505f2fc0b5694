"""Present and peak memory of a rank."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def memory_of(device: torch.device) -> dict[str, float]:
    """Memory in bytes: on a GPU, allocated by tensors and reserved from the driver; otherwise, resident memory of the
    process. Empty if the system does not report it.
    """
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        return {
            f"memory/{name}": float(stats.get(f"{key}_bytes.all.{when}", 0))
            for name, key, when in (
                ("allocated", "allocated", "current"),
                ("allocated_peak", "allocated", "peak"),
                ("reserved", "reserved", "current"),
                ("reserved_peak", "reserved", "peak"),
            )
        }
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return {}
    said = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM")))
    names = {"VmRSS": "memory/resident", "VmHWM": "memory/resident_peak"}
    return {name: 1024.0 * int(said[key].split()[0]) for key, name in names.items() if key in said}
