"""What others ask of a thread: commands, done in its own time and in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from rondo.base.telemetry.log import get_logger
from rondo.engine.entrypoints.streams import answer

log = get_logger("rondo.engine")
T = TypeVar("T")


class Inbox:
    def __init__(self) -> None:
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._ended = False

    async def ask(self, work: Callable[[], T]) -> T:
        """What comes of `work`, done in the thread."""
        future: Future[T] = Future()
        self.post(lambda: answer(future, work))
        return await asyncio.wrap_future(future)

    def post(self, command: Callable[[], None]) -> None:
        """Once the thread has ended, it is done at once."""
        with self._changed:
            if not self._ended:
                self._commands.append(command)
                self._changed.notify()
                return
        command()

    def wake(self) -> None:
        """Something has changed that the thread may wait for."""
        with self._changed:
            self._changed.notify()

    # From here on: in the thread.

    def wait(self, until: Callable[[], bool]) -> None:
        """For a command, or `until` something else is to be done."""
        with self._changed:
            while not (self._commands or until()):
                self._changed.wait()

    def work_off(self) -> None:
        """One by one: should one fail, those behind it are still answered."""
        for _ in range(len(self._commands)):
            self._commands.popleft()()

    def end(self) -> None:
        """Nobody is left waiting."""
        with self._changed:
            self._ended = True
        while self._commands:
            try:
                self._commands.popleft()()
            except Exception:
                log.exception("a command came too late")
