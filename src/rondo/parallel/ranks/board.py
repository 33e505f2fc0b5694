"""Where the ranks of a job leave notes for each other, beside their collectives: a store of its own connection, so that
a rank that waits in a collective, or has died in one, hides nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from rondo.parallel.ranks.mesh import dist, store_of
from rondo.parallel.ranks.world import World

PATIENCE = timedelta(seconds=10)
"""For the store itself, which answers at once or is gone."""


@dataclass(frozen=True)
class Heartbeat:
    """What a rank is at: `steps` counts what it has begun, and is larger on a rank that is further."""

    rank: int
    host: str
    steps: int
    what: str
    count: int
    """Of the beats themselves: another one each time."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (at: {self.what})"


@dataclass(frozen=True)
class Failure:
    """Why all ranks end: what the first of them that knew has said."""

    rank: int
    host: str
    message: str
    exit_code: int
    hang: bool = False
    """Then no rank comes to its end by itself."""


class StoreLost(Exception):
    """The store is, and with it the process that kept it."""


class RankStore:
    def __init__(self, world: World) -> None:
        self.world = world
        self.host = socket.gethostname()
        self._store = store_of(world, PATIENCE)

    def beat(self, beat: Heartbeat) -> None:
        with _kept():
            self._store.set(f"beat/{beat.rank}", json.dumps(asdict(beat)))

    def beats(self) -> list[Heartbeat]:
        """Of all ranks, which have each made one."""
        with _kept():
            said = self._store.multi_get([f"beat/{rank}" for rank in range(self.world.size)])
        return [Heartbeat(**json.loads(text)) for text in said]

    def fail(self, failure: Failure) -> Failure:
        """The first one said, which may be another's."""
        with _kept():
            said = self._store.compare_set("failure", "", json.dumps(asdict(failure)))
        return Failure(**json.loads(said))

    def failure(self) -> Failure | None:
        with _kept():
            if not self._store.check(["failure"]):
                return None
            return Failure(**json.loads(self._store.get("failure")))

    def hear(self) -> None:
        """Says that the first rank knows of the failure, and tells its user."""
        with _kept():
            self._store.set("heard", "1")

    def wait_heard(self, seconds: float) -> bool:
        """Whether the first rank tells its user."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(StoreLost):
            while time.monotonic() < deadline:
                if self._heard():
                    return True
                time.sleep(0.02)
        return False

    def _heard(self) -> bool:
        with _kept():
            return bool(self._store.check(["heard"]))


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise StoreLost(str(error)) from error


def late(beats: Sequence[Heartbeat]) -> list[Heartbeat]:
    """Those that all others wait for: who has begun the least."""
    least = min(beat.steps for beat in beats)
    return [beat for beat in beats if beat.steps == least]
