"""Code of strangers, called so that it may block, raise or never come back, and the rest goes on.

A coroutine function runs on an event loop beside ours, all of them on one; a plain function in a thread of its own.
What is late is left behind: a thread cannot be ended, but nobody waits for it, and it does not keep the process alive.
A loop that a coroutine blocks is left behind too, and the next call begins another.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rondo.base.telemetry.log import get_logger

log = get_logger(__name__)

PING_SECONDS = 1.0
"""A loop that does not answer for so long is blocked."""


class Late(Exception):
    """It was not done in time."""


class Aside:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    async def call(self, seconds: float, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What `function` returns or raises, or `Late`."""
        if inspect.iscoroutinefunction(function):
            return await self._on_loop(seconds, function, *arguments, **named)
        return await _within(seconds, _in_thread(lambda: function(*arguments, **named)))

    def close(self) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    async def _on_loop(
        self, seconds: float, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        loop = self._running()

        async def work() -> Any:
            try:
                return await function(*arguments, **named)
            except (SystemExit, KeyboardInterrupt) as error:  # from a task they would end the loop
                raise RuntimeError(f"it raised {error!r}") from error

        future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return await _within(seconds, future)
        except Late:
            await self._leave_if_blocked(loop, getattr(function, "__qualname__", repr(function)))
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="rondo-aside", daemon=True).start()
            return self._loop

    async def _leave_if_blocked(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        answered: Future[None] = Future()
        loop.call_soon_threadsafe(answered.set_result, None)
        try:
            await _within(PING_SECONDS, answered)
        except Late:
            log.error(f"{name} blocks its event loop, which is left behind. Make it a plain `def`.")
            with self._lock:
                if self._loop is loop:
                    self._loop = None


async def _within(seconds: float, future: Future[Any]) -> Any:
    """The result, or an error of its own kind if there is none in time: what is called may raise `TimeoutError` itself,
    and what ends programs or tasks is to end nothing here."""
    waiting = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()
    if not done:
        raise Late
    if waiting.cancelled():
        raise RuntimeError("it cancelled itself")
    error = waiting.exception()
    if error is not None and not isinstance(error, Exception):
        raise RuntimeError(f"it raised {error!r}")
    return waiting.result()


def _in_thread(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = work()
        except StopIteration as error:  # futures take none
            _settle(future, RuntimeError(f"it raised {error!r}"), None)
        except BaseException as error:
            _settle(future, error, None)
        else:
            _settle(future, None, result)

    threading.Thread(target=run, name="rondo-aside-call", daemon=True).start()
    return future


def _settle(future: Future[Any], error: BaseException | None, result: Any) -> None:
    """Nobody may be waiting any more."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
