"""Heartbeats of a job's ranks, as its launcher's folder has them: which ranks are late."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from rondo.jobs.attempt import BEATS


@dataclass(frozen=True)
class LateRank:
    rank: int
    host: str
    silent: float
    """Seconds since its last heartbeat, by the clock of the file system."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (no heartbeat for {self.silent:.0f} s)"


def late_ranks(folder: Path, seconds: float) -> list[LateRank]:
    """Ranks without a heartbeat for this time, the longest first. Ranks that have never sent one are not late."""
    files = list((folder / BEATS).glob("[0-9]*"))
    if not files:
        return []
    now = _now(folder / BEATS)
    found = []
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            silent, told = now - file.stat().st_mtime, json.loads(file.read_text())
            if silent > seconds and not told.get("left"):
                found.append(LateRank(int(file.name), str(told.get("host", "")), silent))
    return sorted(found, key=lambda each: (-each.silent, each.rank))


def _now(folder: Path) -> float:
    """Time of the file system: the clocks of the machines may differ from it."""
    probe = folder / "now"
    probe.touch()
    return probe.stat().st_mtime
