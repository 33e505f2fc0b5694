"""The instruction-set level that kernels are compiled for: the best of the CPU, or a lower one set by `RONDO_CPU`."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from rondo.base.errors import ConfigError

_AVX2 = frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2"))
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
NEEDS = {
    "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512": _AVX512,
    "avx2": _AVX2,
    "plain": frozenset[str](),
}
"""CPU flags that each level requires, the best level first. `plain` is the baseline of the architecture. On
architectures other than x86-64 it is the only level, compiled for the local CPU."""
NAMES = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2", "plain": "plain C"}
_FEWER = {
    "avx512": ("-march=native", "-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8"),
    "avx2": ("-march=x86-64-v3", "-mtune=native"),
    "plain": ("-march=x86-64", "-mtune=native"),
}


def cpu_flags() -> frozenset[str]:
    """The CPU's flags as the system lists them; empty if it does not."""
    return frozenset(_said("flags", "Features").split())


def cpu_model() -> str:
    """The CPU's model name and cache size as the system lists them."""
    return (
        f"{_said('model name') or platform.processor() or platform.machine()} {_said('cache size')}".strip()
    )


@cache
def _said(*names: str) -> str:
    """The first CPU's value in /proc/cpuinfo for the first line with one of these names."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(names)), "").partition(":")[2].strip()


def best() -> str:
    """The best level of this CPU."""
    return available()[0]


def available() -> list[str]:
    """All levels of this CPU, the best first."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return [name for name, needs in NEEDS.items() if not needs or (x86 and needs <= cpu_flags())]


def level() -> str:
    """The level set by `RONDO_CPU`, or the best."""
    asked = os.environ.get("RONDO_CPU", "")
    if not asked:
        return best()
    if asked not in NEEDS:
        raise ConfigError(f"RONDO_CPU={asked} is no level. Levels are: {', '.join(NEEDS)}.")
    if asked not in available():
        raise ConfigError(
            f"RONDO_CPU={asked} needs instructions that this CPU lacks. Available: {', '.join(available())}."
        )
    return asked


def level_flags() -> tuple[str, ...]:
    """Compiler flags of the level."""
    return ("-march=native",) if level() == best() else _FEWER[level()]
