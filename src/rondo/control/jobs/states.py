"""States of a job, and which change follows which.

    queued -> starting -> running -> succeeded
                 |           |-----> failed       no attempt is left, or another would end in the same way
                 |           |-----> queued       the process was lost, and attempts are left
                 |           `-----> pausing -> paused -> queued
    any of these but the final ones -> cancelled

A final state is never left, so that a late report of a process cannot overwrite a cancellation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

JobState = Literal["queued", "starting", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]
FINAL: frozenset[JobState] = frozenset(["succeeded", "failed", "cancelled"])
NEXT: Mapping[JobState, frozenset[JobState]] = {
    "queued": frozenset(["starting", "paused", "failed", "cancelled"]),
    "starting": frozenset(["running", "pausing", "paused", "queued", "succeeded", "failed", "cancelled"]),
    "running": frozenset(["pausing", "paused", "queued", "succeeded", "failed", "cancelled"]),
    "pausing": frozenset(["paused", "succeeded", "failed", "cancelled"]),
    "paused": frozenset(["queued", "cancelled"]),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
