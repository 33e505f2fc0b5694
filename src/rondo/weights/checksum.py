"""Checksums of buckets (xxh3), and one checksum for a whole set of weights."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from rondo.base.storage.hashing import sha256_json
from rondo.weights.plan.boxes import ByteRun

Bytes = npt.NDArray[np.uint8]
PIECE_BYTES = 512 << 10


def checksum(shards: Iterable[tuple[str, Tensor]]) -> str:
    """Checksum of names, types, shapes and bits, independent of order and device."""
    facts = sorted([name, str(x.dtype), list(x.shape), _of(x)] for name, x in shards)
    return sha256_json(facts)


def bucket_checksum(data: Bytes, runs: Sequence[ByteRun]) -> int:
    """Checksum of a bucket's bytes in the order of its runs. `data` are the bytes of the file."""
    total = xxhash.xxh3_64()
    for run in runs:
        total.update(bytes_of(data, run).data)
    return total.intdigest()


def copied(data: Bytes, run: ByteRun, source: int) -> int:
    """Copies the bytes at the address `source` to a contiguous run, and returns their checksum, as `bucket_checksum`
    does. A piece is still in the core's cache when its checksum is computed, which then costs no pass over memory."""
    total, view, target = xxhash.xxh3_64(), data.data, data.ctypes.data
    for first in range(0, run.length, PIECE_BYTES):
        start, stop = run.offset + first, run.offset + min(first + PIECE_BYTES, run.length)
        ctypes.memmove(target + start, source + first, stop - start)
        total.update(view[start:stop])
    return total.intdigest()


def copy_rate(threads: int, nbytes: int = 8 << 20) -> float:
    """Bytes per second that threads of this process copy with a checksum; the best of three measurements."""
    targets = [np.zeros(nbytes, np.uint8) for _ in range(threads)]
    source, best = np.ones(nbytes, np.uint8), float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            started = time.perf_counter()
            list(pool.map(lambda data: copied(data, ByteRun(0, nbytes), source.ctypes.data), targets))
            best = min(best, time.perf_counter() - started)
    return threads * nbytes / best


def bytes_of(data: Bytes, run: ByteRun) -> Bytes:
    """A run's bytes: a view if they are contiguous, else a copy."""
    if run.count == 1:
        return data[run.offset : run.offset + run.length]
    end = run.offset + (run.count - 1) * run.stride + run.length
    strided = np.lib.stride_tricks.as_strided(
        data[run.offset : end], (run.count, run.length), (run.stride, 1), writeable=False
    )
    return np.ascontiguousarray(strided).reshape(-1)


def _of(tensor: Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return int(xxhash.xxh3_64_intdigest(flat.view(torch.uint8).numpy().data)) if flat.numel() else 0
