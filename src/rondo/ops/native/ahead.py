"""All that is compiled, before the first request needs it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rondo.ops.native.build import library

KERNELS = ("layers", "paged_decode", "pointwise", "low_rank", "draw", "logprobs")
"""The slowest to compile first."""


def compile_all() -> None:
    """Side by side, since each has a compiler of its own; where they are there already, it takes no time."""
    with ThreadPoolExecutor(len(KERNELS)) as pool:
        list(pool.map(library, KERNELS))
