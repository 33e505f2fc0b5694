"""The device of this machine, as the planner's input: its kind, memory and number types. Reads the system's own tables
and nvidia-smi, so that torch is not imported.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from rondo.plan.cost.cluster import Gpu, gpu_called

MIB = 2**20
SMI_SECONDS = 10.0
CGROUPS = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}
"""Controllers in /proc/self/cgroup: folder of the hierarchy, and name of its limit files. Version 2 has no name."""
MATRIX_UNITS = "amx_bf16"
"""CPU flag of instructions that multiply bf16 matrices many times as fast as fp32 ones."""


@dataclass(frozen=True)
class Device:
    """`memory` is what the device has, which is the same at each start; `free` is what is free now, if known."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory: float
    free: float | None = None
    bf16: bool = False
    """Whether bf16 products are much faster than fp32 ones."""
    gpu: Gpu | None = None
    """Rates of a known GPU."""

    @classmethod
    def of_gpu(cls, gpu: Gpu) -> Device:
        return cls(gpu.name, "cuda", gpu.memory, bf16=True, gpu=gpu)


def device_at_hand(name: str) -> Device | None:
    """The device that a job with `device=name` uses; None if the planner does not know its kind or memory."""
    kind, _, index = name.partition(":")
    if kind == "auto":
        return (_gpu(0) if _torch_has_cuda() else None) or _cpu()
    if kind == "cpu":
        return _cpu()
    return _gpu(int(index or 0)) if kind == "cuda" and (index or "0").isdigit() else None


def _torch_has_cuda() -> bool:
    """Whether the installed torch is a build for CUDA, by its version."""
    try:
        return not metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def _cpu() -> Device | None:
    facts = _table(Path("/proc/meminfo"))
    if "MemTotal" not in facts:
        return None
    memory = min([1024.0 * int(facts["MemTotal"].split()[0]), *_limits()])
    free = min(memory, 1024.0 * int(facts["MemAvailable"].split()[0])) if "MemAvailable" in facts else None
    cpu = _table(Path("/proc/cpuinfo"))
    return Device(
        cpu.get("model name", "CPU"), "cpu", memory, free, MATRIX_UNITS in cpu.get("flags", "").split()
    )


def _table(path: Path) -> dict[str, str]:
    """Lines `name: value` of a file, the first of each name."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.partition(":") for line in lines]
    return {name.strip(): value.strip() for name, _, value in reversed(pairs) if value}


def _limits() -> list[float]:
    """Memory limits of the process's control group and of the groups that contain it."""
    found = []
    for place in _limit_files():
        try:
            text = place.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(float(text))
    return found


def _limit_files() -> Iterator[Path]:
    paths = {"": "/", "memory": "/"}
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for name in set(controllers.split(",")) & set(paths):
            paths[name] = path
    for name, path in paths.items():
        root, file = CGROUPS[name]
        group = Path(path)
        for each in (group, *group.parents):
            yield Path(root, str(each).lstrip("/"), file)


def _gpu(index: int) -> Device | None:
    """The NVIDIA GPU with this index among the visible ones."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = str(index)
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if index >= len(names):
            return None
        chosen = names[index]
    found = _smi(chosen)
    if found is None:
        return None
    name, total, free = found
    known = gpu_called(name)
    gpu = None if known is None else replace(known, memory=total)
    return Device(name.removeprefix("NVIDIA "), "cuda", total, free, True, gpu)


@cache
def _smi(chosen: str) -> tuple[str, float, float] | None:
    """Name, memory and free memory of a GPU."""
    fields = "--query-gpu=name,memory.total,memory.free"
    command = ["nvidia-smi", fields, "--format=csv,noheader,nounits", "-i", chosen]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
        name, total, free = (part.strip() for part in said.splitlines()[0].rsplit(",", 2))
        return name, float(total) * MIB, float(free) * MIB
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
