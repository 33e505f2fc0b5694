"""Displaced attempts: how many in a row saved no new checkpoint, and nodes that later attempts avoid.

Each one has a file in its folder, so that the counts outlive the gateway.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rondo.base.errors import RondoError
from rondo.base.storage.files import read_json, storage_error, write_json
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.jobs.job import Job

FILE = "displaced.json"
AVOIDED_SECONDS = 86400.0
"""Time for which a faulty node is avoided; it may be repaired later."""


def record_displaced(id: str, attempt: int, job: Job | None, nodes: Sequence[str]) -> int:
    """Records the attempt and its faulty nodes. Number of displaced attempts in a row without a new checkpoint, this
    one included."""
    step, place = _saved_step(job), AttemptFolder.of(id, attempt).path
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / FILE, {"step": step, "nodes": list(nodes), "time": time.time()})
    except OSError as error:
        raise storage_error(place, error) from error
    count = 1
    while count < attempt:
        before = _read(AttemptFolder.of(id, attempt - count).path / FILE)
        if before is None or before.get("step") != step:
            break
        count += 1
    return count


def avoided_nodes(id: str) -> tuple[str, ...]:
    """Faulty nodes of the job's recent attempts."""
    found = set[str]()
    for file in AttemptFolder.of(id, 0).path.parent.glob(f"*/{FILE}"):
        told = _read(file)
        if told is not None and time.time() - told.get("time", 0.0) < AVOIDED_SECONDS:
            found.update(told.get("nodes", ()))
    return tuple(sorted(found))


def _saved_step(job: Job | None) -> int:
    """Step of the newest checkpoint; 0 without one, or if its storage cannot be read."""
    with contextlib.suppress(RondoError):
        return max(job.saved_steps(), default=0) if job is not None else 0
    return 0


def _read(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(RondoError):
        told = read_json(file)
        return told if isinstance(told, dict) else None
    return None
