"""Queue of commands from rank 0 to the other ranks, in order. Any thread may add commands or start the reading of an
adapter.

The message of a step is sent with the step, since all ranks compute it together; other commands may wait for the next
message.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rondo.engine.ranks.ranks import AdapterRead, Ranks

MOST_HELD = 256
"""Maximum number of queued commands; a paused engine sends them when it is reached."""

Command = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class SharedStep:
    """A step that all ranks compute: a digest of its plan, whether it speculates (rank 0 decides from its own times),
    and a digest of the tokens sampled in the previous step."""

    plan: int
    speculates: bool
    sampled: int


@dataclass(frozen=True)
class RankMessage:
    """Commands for the engine core, in order; with `together`, the last one is that step."""

    commands: list[Command]
    together: SharedStep | None = None


class Outbox:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._queued: list[Command] = []
        self._numbers = count(1)
        self._dropped: deque[int] = deque()

    def queue(self, name: str, *args: Any) -> None:
        if self.ranks.lost is not None:
            return
        with self._lock:
            self._queued.append((name, args))
            full = len(self._queued) >= MOST_HELD
        if full:
            self.send()

    def send(self, *last: Command, together: SharedStep | None = None) -> None:
        """Sends all queued commands, and then `last`."""
        try:
            with self._lock:
                queued, self._queued = self._queued, []
                self.ranks.send(RankMessage([*queued, *self._forgotten(), *last], together))
        except OSError as error:
            raise self.ranks.end_after_failure(error) from error

    def read_adapter(self, folder: Path) -> int:
        """Makes the other ranks read an adapter while their steps continue. Returns the adapter's number."""
        self.ranks.check()
        number = next(self._numbers)
        self.send(("read_adapter", (number, folder.absolute())))
        return number

    def answers(self, number: int) -> list[AdapterRead]:
        """The result of reading the adapter on each of the other ranks."""
        return self.ranks.answers(number)

    def forget_adapter(self, number: int) -> None:
        """Releases an adapter on the other ranks. May be called at any time from any thread, such as by the garbage
        collector."""
        self._dropped.append(number)

    def _forgotten(self) -> list[Command]:
        """Commands that release adapters, sent after the queued ones, which may include a request that used the
        adapter."""
        numbers = []
        while self._dropped:
            numbers.append(self._dropped.popleft())
        return [("forget_adapters", (numbers,))] if numbers else []
