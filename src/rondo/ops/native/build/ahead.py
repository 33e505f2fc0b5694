"""All that is compiled, before a request needs it: at installation, by `python -m rondo.ops.native`, and at an engine's
start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rondo.ops.native.build.build import compiler, library
from rondo.ops.native.build.level import NAMES, level

KERNELS = (
    *("layers", "linear", "paged_decode", "attend", "pointwise", "quantized"),
    *("low_rank", "draw", "logprobs", "registers"),
)
"""The slowest to compile first."""
WAYS = ("", "AVX-512 BF16", "AMX")
"""How weights are multiplied, by the numbers of `pairs.h`: the first is by floats."""
BF16 = 1


def compile_all() -> None:
    """Side by side, since each has a compiler of its own; where they are there already, it takes no time."""
    level()  # so that a level that cannot be is said before anything else
    with ThreadPoolExecutor(len(KERNELS)) as pool:
        list(pool.map(library, KERNELS))


def lost() -> str | None:
    """What this machine does without, and why; None where every kernel is there."""
    if not compiler():
        return (
            "there is no C compiler, or RONDO_NATIVE=0 says to do without: plain torch runs in place of every "
            "kernel, several times slower for a small model. Install gcc."
        )
    missing = [name for name in KERNELS if library(name) is None]
    return f"kernels that could not be compiled run as plain torch: {', '.join(missing)}" if missing else None


def runs(dtype: str) -> str:
    """Which version of the kernels multiplies here, as a person reads it: "AVX2", or "plain torch"."""
    layers = library("layers")
    if layers is None:
        return "plain torch"
    here = level()
    if dtype == "bf16" and (way := layers.product_way(BF16)):
        return WAYS[way]
    return NAMES["avx512" if here == "amx" else here]


def multiplies_bf16() -> bool:
    """Whether the compiled product has the CPU's own bf16 instructions, and may use them."""
    layers = library("layers")
    return layers is not None and layers.product_way(BF16) != 0
