"""Detection of straggling ranks. Ranks wait for each other in every step, so step times are equal: instead, each rank
times the same small computation by itself, and reports it together with its wait for data.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rondo.parallel.ranks.crew import RankSupervisor

SLOW = 1.5
"""Multiple of the median from which a rank counts as slow."""
REPEATS = 3


@dataclass(frozen=True)
class Pace:
    rank: int
    host: str
    work: float
    """Seconds of the fastest measurement."""
    load: float
    """Seconds per step."""


def slow(paces: Sequence[Pace], step_seconds: float) -> list[str]:
    """Warnings about the stragglers."""
    work, load = (
        statistics.median(values) for values in zip(*((p.work, p.load) for p in paces), strict=True)
    )
    found = []
    for pace in paces:
        who = f"rank {pace.rank} on {pace.host}"
        if pace.work > SLOW * work:
            found.append(f"{who} computes {pace.work / work:.1f} times slower than the median rank")
        if pace.load > load + 0.1 * step_seconds:
            found.append(f"{who} waits {pace.load:.2f} s a step for its data, the median rank {load:.2f} s")
    return found


def measure(device: torch.device) -> float:
    size = 384 if device.type == "cpu" else 4096
    x = torch.ones(size, size, device=device)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for _ in range(4):
            x @ x
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times)


def look(crew: RankSupervisor, device: torch.device, load: float, step_seconds: float) -> list[str]:
    """Warnings about stragglers; all ranks must call this at the same step."""
    crew.said_by_all(None)  # barrier, so that all ranks measure at the same time
    own = Pace(crew.world.rank, crew.host, measure(device), load)
    return slow(crew.said_by_all(own), step_seconds)
