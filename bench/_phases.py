"""The `rondo` command, telling in a file in which phase of an RL job it is: `_phases.py FILE rl ...`.

The file is mapped, so that the last word is there however the process ends. It has three lines: the innermost phase of
the thread that trains, the step that it is in, and what a thread beside it does.
"""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LINE = 32
OTHER = {
    "evaluate": "rondo.rl.loop:Loop.evaluate",
    "store": "rondo.rl.record.observer:Watch.__call__",
    "log": "rondo.jobs.job:Job.log",
    "restore": "rondo.rl.loop:Loop.restore",
    "leave": "rondo.rl.jobs:export",
}
"""Phases that no clock measures, each by the function that it is."""


class Told:
    def __init__(self, file: str) -> None:
        Path(file).write_bytes(b" " * 3 * LINE)
        with open(file, "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 3 * LINE)
        self._phases = ["start"]
        self.put(0, "start")

    def put(self, line: int, what: object) -> None:
        self._map[line * LINE : (line + 1) * LINE] = str(what).encode().ljust(LINE)

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        self._phases.append(phase)
        self.put(0, phase)
        try:
            yield
        finally:
            self._phases.pop()
            self.put(0, self._phases[-1])

    def between(self) -> None:
        """Of phases that have no name: what the loop does between them."""
        self._phases[0] = "between"


def main(file: str, command: list[str]) -> int:
    told = Told(file)
    from rondo.cli.main import main as rondo
    from rondo.rl.loop import Loop
    from rondo.rl.record.timer import LoopTimer
    from rondo.train.checkpoints import dcp

    timed, step, write = LoopTimer.__call__, Loop.step, dcp.write

    @contextmanager
    def phase(clock: LoopTimer, name: str) -> Iterator[None]:
        told.between()
        with told.within(name), timed(clock, name):
            yield

    def stepping(loop: Loop) -> Any:
        told.put(1, loop.steps_done)
        return step(loop)

    def writing(*arguments: Any, **named: Any) -> Any:
        told.put(2, "save")
        try:
            return write(*arguments, **named)
        finally:
            told.put(2, "")

    LoopTimer.__call__ = phase  # type: ignore[method-assign]
    Loop.step = stepping  # type: ignore[method-assign]
    dcp.write = writing
    for name, place in OTHER.items():
        _wrap(told, name, place)
    return rondo(command)


def _wrap(told: Told, phase: str, place: str) -> None:
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *within, name = path.split(".")
    for each in within:
        owner = getattr(owner, each)
    function: Callable[..., Any] = getattr(owner, name)

    def telling(*arguments: Any, **named: Any) -> Any:
        with told.within(phase):
            return function(*arguments, **named)

    setattr(owner, name, telling)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
