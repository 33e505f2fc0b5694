"""Which of a CPU's instructions the kernels are compiled for: the best it has, or, with `RONDO_CPU`, fewer."""

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
"""What each level wants of a CPU, the best first. `plain` is what every CPU of its kind has; where the kind is not
x86-64 there is no other, and it is compiled for the CPU at hand."""
NAMES = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2", "plain": "plain C"}
_FEWER = {
    "avx512": ("-march=native", "-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8"),
    "avx2": ("-march=x86-64-v3", "-mtune=native"),
    "plain": ("-march=x86-64", "-mtune=native"),
}


def cpu_flags() -> frozenset[str]:
    """As the system names them; empty where it does not."""
    return frozenset(_said("flags", "Features").split())


def cpu_model() -> str:
    """As the system names it, with how much its caches hold."""
    return (
        f"{_said('model name') or platform.processor() or platform.machine()} {_said('cache size')}".strip()
    )


@cache
def _said(*names: str) -> str:
    """What the system says of its first CPU under the first of these names that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(names)), "").partition(":")[2].strip()


def best() -> str:
    """The best level this CPU has."""
    return available()[0]


def available() -> list[str]:
    """All levels this CPU has, the best first."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return [name for name, needs in NEEDS.items() if not needs or (x86 and needs <= cpu_flags())]


def level() -> str:
    """The one that `RONDO_CPU` asks for, or the best."""
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
    """What the compiler is told."""
    return ("-march=native",) if level() == best() else _FEWER[level()]
