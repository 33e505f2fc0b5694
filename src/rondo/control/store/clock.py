"""Clocks by which leases run. Setting the machine's clock neither ends nor extends a lease."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from rondo.control import tables

MICROSECONDS = 1_000_000


def microseconds() -> int:
    """The machine's clock, for timestamps that people read."""
    return time.time_ns() // 1000


class Clock(Protocol):
    def now(self, db: sa.Connection) -> int:
        """Microseconds since the epoch, within the caller's transaction."""


class DatabaseClock:
    """PostgreSQL's clock: the same for every host."""

    _now = sa.select(sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * MICROSECONDS, sa.BigInteger))

    def now(self, db: sa.Connection) -> int:
        return int(db.execute(self._now).scalar_one())


class MonotonicClock:
    """The kernel's monotonic clock plus an origin, which all processes since the machine's start share."""

    def __init__(self, origin: int) -> None:
        self._origin = origin

    def now(self, db: sa.Connection) -> int:
        return self._origin + time.monotonic_ns() // 1000


def shared_clock(db: sa.Connection) -> MonotonicClock:
    """The clock of this start of the machine; the first process after a start stores its origin."""
    boot = _boot_id()
    origin = db.scalar(sa.select(tables.clock.c.origin).where(tables.clock.c.boot == boot)) if boot else None
    if origin is None:
        origin = microseconds() - time.monotonic_ns() // 1000
        db.execute(sa.delete(tables.clock))
        if boot:
            db.execute(sa.delete(tables.duties))  # they ended with the machine, and run by the former origin
            db.execute(sa.insert(tables.clock).values(boot=boot, origin=origin))
    return MonotonicClock(origin)


def _boot_id() -> str:
    """Empty where the kernel has none; each process then has an origin of its own."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
