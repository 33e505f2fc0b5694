"""What the queue is given, gives out, and is given back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["queued", "leased", "resting", "done", "dead", "cancelled"]


@dataclass(frozen=True)
class New:
    """One prompt. `body` is JSON that only the worker reads; of lower `priority` numbers are first."""

    model: str
    body: str
    priority: int = 0


@dataclass(frozen=True)
class Group:
    """What came in together. It has ended when it is sealed and nothing of it is unfinished."""

    name: str
    owner: str
    total: int
    unfinished: int
    sealed: bool
    created: float
    ended: float | None


@dataclass(frozen=True)
class Leased:
    """Work of a worker's, until it is finished or `lease` runs out. `attempts` counts this one."""

    id: str
    lease: str
    model: str
    body: str
    attempts: int


@dataclass(frozen=True)
class Finished:
    """`result` is JSON; or `error` says what went wrong, and `again` whether another try may help."""

    id: str
    lease: str
    result: str | None = None
    error: str | None = None
    again: bool = False


Verdict = Literal["done", "resting", "dead", "stale", "unknown"]
"""What became of something finished. `stale`: it was another worker's by then, cancelled, or its end had been told
already with another lease; nothing has changed."""


@dataclass(frozen=True)
class QueuedRequest:
    id: str
    model: str
    state: State
    body: str
    attempts: int
    worker: str | None
    result: str | None
    reason: str | None


@dataclass(frozen=True)
class Swept:
    """How many leases ran out and rest, how many of these were the last try, and how many have rested."""

    expired: int = 0
    dead: int = 0
    rested: int = 0


def request_id(group: str, place: int) -> str:
    return f"{group}_{place:09d}"


def parted(id: str) -> tuple[str, int] | None:
    """The group's name and the place in it; None for what is no id of a request."""
    group, _, place = id.rpartition("_")
    if not group or not place.isascii() or not place.isdigit() or len(place) != 9:
        return None
    return group, int(place)
