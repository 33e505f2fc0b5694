"""Facts of `rondo doctor` about the machine and the installation, without kernels."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.base.storage.home import home, jobs_dir, models_dir
from rondo.plan.machine import device_at_hand

EXTRAS = {
    "vllm": ("vllm", "vLLM as a second engine"),
    "data": ("pyarrow", "Parquet and .zst files"),
    "s3": ("s3fs", "s3:// data and checkpoints"),
    "graders": ("math_verify", "mathematics, JSON schemas, OpenAI's grader types"),
    "plot": ("matplotlib", "plots of benchmarks and RL jobs"),
    "wandb": ("wandb", "Weights & Biases"),
    "otel": ("opentelemetry", "OpenTelemetry traces"),
    "ray": ("ray", "engines and learner placed by Ray"),
    "megatron": ("megatron", "Megatron-Core as a second learner"),
    "postgres": ("psycopg", "PostgreSQL as the store"),
    "etcd": ("aetcd", "etcd as the directory of weight versions"),
    "fast": ("uvloop", "a faster event loop of the gateway"),
}
"""Extra: the module that it installs, and its purpose."""

HUB_SECONDS = 10.0
LEAST_DISK = 5 << 30
"""Free bytes below which an installation with one small model hardly fits."""


def machine() -> dict[str, Any]:
    found = {
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "torch": _torch(),
        "devices": _devices(),
        "memory": _memory(),
        "home": _home(),
        "compiler": shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc"),
        "extras": {name: _installed(module) for name, (module, _) in EXTRAS.items()},
    }
    return found | {"problems": _problems(found), "advice": _advice(found)}


def reach_hub() -> dict[str, Any]:
    """Whether the hub answers."""
    from rondo.hub.listing import endpoint

    address = endpoint()
    try:
        with urllib.request.urlopen(address, timeout=HUB_SECONDS) as answer:
            return {"address": address, "reachable": answer.status < 500}
    except urllib.error.HTTPError as error:
        return {"address": address, "reachable": error.code < 500}
    except (OSError, ValueError) as error:
        return {"address": address, "reachable": False, "error": str(error)}


def _torch() -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"version": None, "error": " ".join(str(error).split())}
    return {"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.version.cuda}


def _devices() -> list[dict[str, Any]]:
    """The CPU and each GPU that torch can use."""
    if importlib.util.find_spec("torch") is None:
        return []
    try:
        import torch

        from rondo.ops.native.build.level import cpu_model
    except (ImportError, OSError):
        return []
    found: list[dict[str, Any]] = [{"device": "cpu", "name": cpu_model(), "cores": os.cpu_count()}]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append({"device": f"cuda:{index}", "name": facts.name, "memory_bytes": facts.total_memory})
    return found


def _memory() -> dict[str, int]:
    """Memory as the planner counts it: within the limit of the container."""
    page = os.sysconf("SC_PAGE_SIZE")
    cpu = device_at_hand("cpu")
    total = cpu.memory if cpu else os.sysconf("SC_PHYS_PAGES") * page
    free = cpu.free if cpu else None
    return {
        "total_bytes": int(total),
        "available_bytes": int(os.sysconf("SC_AVPHYS_PAGES") * page if free is None else free),
    }


def _home() -> dict[str, Any]:
    folder = home()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "folder": str(folder),
        "models": _count(models_dir()),
        "jobs": _count(jobs_dir()),
        "free_bytes": shutil.disk_usage(place).free,
        "writable": os.access(place, os.W_OK),
    }


def _count(folder: Path) -> int:
    try:
        return sum(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())
    except OSError:
        return 0


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """By module; reads the files of every installed package."""
    return importlib.metadata.packages_distributions()


def _installed(module: str) -> str | None:
    """Version of the package with this module; None if it is missing."""
    if importlib.util.find_spec(module) is None:
        return None
    names = _distributions().get(module, [module])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def _problems(found: dict[str, Any]) -> list[str]:
    """Defects with which Rondo cannot work."""
    problems = []
    if found["torch"]["version"] is None:
        problems.append(
            f"torch cannot be imported: {found['torch']['error']}. Run: pip install --force-reinstall torch"
        )
    if not found["home"]["writable"]:
        problems.append(f"{found['home']['folder']} is not writable: set RONDO_HOME to another folder")
    return problems


def _advice(found: dict[str, Any]) -> list[str]:
    advice = []
    if found["compiler"] is None:
        advice.append("no C compiler: plain torch replaces the compiled kernels. Run: apt install gcc")
    if Path("/proc/driver/nvidia/version").exists() and not found["torch"].get("cuda"):
        advice.append(
            "this machine has an NVIDIA driver, but torch is built without CUDA: install torch for CUDA"
        )
    if found["home"]["free_bytes"] < LEAST_DISK:
        advice.append(
            f"less than 5 GB are free in {found['home']['folder']}: set RONDO_HOME to a larger disk"
        )
    return advice
