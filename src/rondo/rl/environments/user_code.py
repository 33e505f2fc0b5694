"""Calls of user code that can block, raise or never return, isolated from the caller.

Coroutine functions share one event loop in another thread; a plain function runs in its own thread. A call that
exceeds its time limit is abandoned: its thread cannot be stopped, but is a daemon and does not block the exit of the
process. An event loop that a coroutine blocks is abandoned too, and the next call starts another.
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
"""Seconds without a response after which an event loop counts as blocked."""


class Late(Exception):
    """The call exceeded its time limit."""


class Aside:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    async def call(self, seconds: float, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return the result of `function` or raise its exception; raise `Late` after `seconds`."""
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
            except (SystemExit, KeyboardInterrupt) as error:  # in a task they would stop the event loop
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
    """The result, or `Late` after `seconds`. `Late` is distinct from `TimeoutError`, which user code may raise
    itself; exceptions that end programs or tasks become RuntimeError.
    """
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
        except StopIteration as error:  # a Future does not accept StopIteration
            _settle(future, RuntimeError(f"it raised {error!r}"), None)
        except BaseException as error:
            _settle(future, error, None)
        else:
            _settle(future, None, result)

    threading.Thread(target=run, name="rondo-aside-call", daemon=True).start()
    return future


def _settle(future: Future[Any], error: BaseException | None, result: Any) -> None:
    """Set the result unless the future is cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
