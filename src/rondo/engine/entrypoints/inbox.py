"""Command queue of a thread: other threads post commands, which the thread runs in order."""

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

    async def call(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread and returns its result."""
        future: Future[T] = Future()
        self.post(lambda: answer(future, work))
        return await asyncio.wrap_future(future)

    def post(self, command: Callable[[], None]) -> None:
        """Queues a command; once the thread has ended, the command runs at once."""
        with self._changed:
            if not self._ended:
                self._commands.append(command)
                self._changed.notify()
                return
        command()

    def wake(self) -> None:
        """Wakes the thread so that it checks its wait condition again."""
        with self._changed:
            self._changed.notify()

    # The methods below run in the thread.

    def wait(self, until: Callable[[], bool]) -> None:
        """Waits for a command, or until `until()` is true."""
        with self._changed:
            while not (self._commands or until()):
                self._changed.wait()

    def work_off(self) -> None:
        """Runs the queued commands one by one: if one fails, those behind it stay in the queue and are
        still answered."""
        for _ in range(len(self._commands)):
            self._commands.popleft()()

    def end(self) -> None:
        """Runs the remaining commands, so that no caller is left waiting."""
        with self._changed:
            self._ended = True
        while self._commands:
            try:
                self._commands.popleft()()
            except Exception:
                log.exception("a command came too late")
