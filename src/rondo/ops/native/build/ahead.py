"""Compilation of all kernels before a request needs them: at installation, by `python -m rondo.ops.native`, and at an
engine's start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rondo.ops.native.build.build import compiler, library
from rondo.ops.native.build.level import NAMES, level

KERNELS = (
    *("layers", "linear", "paged_decode", "attend", "pointwise", "quantized"),
    *("low_rank", "draw", "logprobs", "registers"),
)
"""Kernels, the slowest to compile first."""
WAYS = ("", "AVX-512 BF16", "AMX")
"""Names of the ways to multiply weights, by their numbers in `pairs.h`; the first is plain floats."""
BF16 = 1


def compile_all() -> None:
    """Compiles all kernels in parallel; cached libraries take no time."""
    level()  # an invalid level raises here, before compilation
    with ThreadPoolExecutor(len(KERNELS)) as pool:
        list(pool.map(library, KERNELS))


def lost() -> str | None:
    """The kernels that this machine lacks, and the reason; None if there are all."""
    if not compiler():
        return (
            "there is no C compiler, or RONDO_NATIVE=0 says to do without: plain torch runs in place of every "
            "kernel, several times slower for a small model. Install gcc."
        )
    missing = [name for name in KERNELS if library(name) is None]
    return f"kernels that could not be compiled run as plain torch: {', '.join(missing)}" if missing else None


def runs(dtype: str) -> str:
    """Name of the instruction set that the kernels multiply with, for display: "AVX2", or "plain torch"."""
    layers = library("layers")
    if layers is None:
        return "plain torch"
    here = level()
    if dtype == "bf16" and (way := layers.product_way(BF16)):
        return WAYS[way]
    return NAMES["avx512" if here == "amx" else here]


def multiplies_bf16() -> bool:
    """Whether the compiled product uses the CPU's bf16 instructions."""
    layers = library("layers")
    return layers is not None and layers.product_way(BF16) != 0
