"""What rank 0 has to tell the other ranks, in order. Any thread may tell, or make them read an adapter.

A step computes together with the others, so its message goes out with it; all else may wait for the next one.
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
"""Commands that may wait for the next step; an engine that is paused for long sends them anyway."""

Command = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class SharedStep:
    """A step that all ranks compute: a hash of its plan, whether it speculates, which is a matter of time, and a hash
    of what the step before sampled."""

    plan: int
    speculates: bool
    sampled: int


@dataclass(frozen=True)
class RankMessage:
    """What was done to the engine, in order; with `together` the last of it is that step."""

    commands: list[Command]
    together: SharedStep | None = None


class Outbox:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._told: list[Command] = []
        self._numbers = count(1)
        self._gone: deque[int] = deque()

    def tell(self, name: str, *args: Any) -> None:
        if self.ranks.lost is not None:
            return
        with self._lock:
            self._told.append((name, args))
            full = len(self._told) >= MOST_HELD
        if full:
            self.send()

    def send(self, *last: Command, together: SharedStep | None = None) -> None:
        """All that was told, and then `last`."""
        try:
            with self._lock:
                told, self._told = self._told, []
                self.ranks.send(RankMessage([*told, *self._forgotten(), *last], together))
        except OSError as error:
            raise self.ranks.give_up(error) from error

    def read_adapter(self, folder: Path) -> int:
        """The others begin to read it, beside their steps. Returns the number that it has from now on."""
        self.ranks.check()
        number = next(self._numbers)
        self.send(("read_adapter", (number, folder.absolute())))
        return number

    def answers(self, number: int) -> list[AdapterRead]:
        """What came of it, on each of the others."""
        return self.ranks.answers(number)

    def forget_adapter(self, number: int) -> None:
        """From any thread, at any moment: the garbage collector may be who says it."""
        self._gone.append(number)

    def _forgotten(self) -> list[Command]:
        """After what was told: a request that used it was told before."""
        numbers = []
        while self._gone:
            numbers.append(self._gone.popleft())
        return [("forget_adapters", (numbers,))] if numbers else []
