"""Message board for the ranks of a job, separate from their collectives: a store over a connection of its own, so that
it stays readable while a rank hangs or dies in a collective.
"""

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
"""Timeout of requests to the store, which responds immediately or is lost."""


@dataclass(frozen=True)
class Heartbeat:
    """Progress of a rank: `steps` counts the activities that it has started and is larger on a rank that is further
    ahead.
    """

    rank: int
    host: str
    steps: int
    what: str
    count: int
    """Sequence number of the heartbeat; it changes with each one."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (at: {self.what})"


@dataclass(frozen=True)
class Failure:
    """Reason for which all ranks end: the first failure that a rank has reported."""

    rank: int
    host: str
    message: str
    exit_code: int
    hang: bool = False
    """True if no rank ends by itself."""


class StoreLost(Exception):
    """The store is lost, and with it the process that serves it."""


class RankStore:
    def __init__(self, world: World) -> None:
        self.world = world
        self.host = socket.gethostname()
        self._store = store_of(world, PATIENCE)

    def beat(self, beat: Heartbeat) -> None:
        with _kept():
            self._store.set(f"beat/{beat.rank}", json.dumps(asdict(beat)))

    def beats(self) -> list[Heartbeat]:
        """Latest heartbeats of all ranks; each rank must have sent one."""
        with _kept():
            said = self._store.multi_get([f"beat/{rank}" for rank in range(self.world.size)])
        return [Heartbeat(**json.loads(text)) for text in said]

    def fail(self, failure: Failure) -> Failure:
        """Reports a failure and returns the first one reported, which may be another rank's."""
        with _kept():
            said = self._store.compare_set("failure", "", json.dumps(asdict(failure)))
        return Failure(**json.loads(said))

    def failure(self) -> Failure | None:
        with _kept():
            if not self._store.check(["failure"]):
                return None
            return Failure(**json.loads(self._store.get("failure")))

    def hear(self) -> None:
        """Confirms that the first rank has received the failure and reports it to the user."""
        with _kept():
            self._store.set("heard", "1")

    def wait_heard(self, seconds: float) -> bool:
        """Waits until the first rank has confirmed that it reports the failure to the user; returns False after a
        timeout.
        """
        heard = self._wait_for(["heard"], seconds)
        with contextlib.suppress(StoreLost), _kept():
            self._store.set(f"parted/{self.world.rank}", "1")
        return heard

    def wait_parted(self, seconds: float) -> None:
        """Keeps the store of the first rank until the others know that it reports the failure."""
        self._wait_for([f"parted/{rank}" for rank in range(1, self.world.size)], seconds)

    def _wait_for(self, keys: list[str], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(StoreLost):
            while time.monotonic() < deadline:
                with _kept():
                    if self._store.check(keys):
                        return True
                time.sleep(0.02)
        return False


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise StoreLost(str(error)) from error


def late(beats: Sequence[Heartbeat]) -> list[Heartbeat]:
    """Stragglers that all other ranks wait for: the ranks with the fewest steps started."""
    least = min(beat.steps for beat in beats)
    return [beat for beat in beats if beat.steps == least]
