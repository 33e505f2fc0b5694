"""Types of the queue: prompts and groups, leases, results and verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["queued", "leased", "resting", "done", "dead", "cancelled"]


@dataclass(frozen=True)
class New:
    """One prompt. Only the worker parses `body`. Lower `priority` numbers are served first. Workers lease by `base`,
    the base model of an adapter or a job's hash; without it, `model` is the base."""

    model: str
    body: str
    priority: int = 0
    base: str | None = None

    @property
    def lane(self) -> tuple[str, int]:
        """Owners share capacity within a lane."""
        return self.base or self.model, self.priority


@dataclass(frozen=True)
class Group:
    """Prompts of one submission. It has ended when it is sealed and has no unfinished prompt. Times are
    microseconds since the epoch."""

    name: str
    owner: str
    total: int
    unfinished: int
    sealed: bool
    created: int
    ended: int | None


@dataclass(frozen=True)
class Leased:
    """A prompt that a worker holds until it finishes it or the lease expires. `attempts` includes this one."""

    id: str
    lease: str
    model: str
    body: str
    attempts: int
    suspect: bool = False
    """Whether an earlier attempt ended with a crash: it runs with other suspects only."""


@dataclass(frozen=True)
class Finished:
    """A result; or an `error`, with `again` if another attempt may help. The tokens of a result are added to the usage
    of its owner's key. `in_flight`: after a crash of the engine, the number of requests that it executed."""

    id: str
    lease: str
    result: str | None = None
    error: str | None = None
    again: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    in_flight: int = 0


Verdict = Literal["done", "resting", "dead", "stale", "unknown"]
"""Outcome of a `Finished`. `stale`: the prompt was leased to another worker meanwhile, cancelled, or ended under
another lease; nothing changed."""


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
    """Numbers of expired leases with attempts left, of expired leases without, and of rests that ended."""

    expired: int = 0
    dead: int = 0
    rested: int = 0


def request_id(group: str, place: int) -> str:
    return f"{group}_{place:09d}"


def parted(id: str) -> tuple[str, int] | None:
    """Group name and place of a request id; None for a malformed id."""
    group, _, place = id.rpartition("_")
    if not group or not place.isascii() or not place.isdigit() or len(place) != 9:
        return None
    return group, int(place)


def signal_of(group: str) -> str:
    """Name of the signal that follows each result of a group."""
    return f"group {group}"
