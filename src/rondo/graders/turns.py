"""Execution in a thread pool with the queueing time excluded from the grader's limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from rondo.graders.guarded import waiting

T = TypeVar("T")


async def in_turn(threads: ThreadPoolExecutor, work: Callable[[Callable[[], None]], T]) -> T:
    """Runs `work(begin)` in one of the threads. Time before `begin` is called does not count for the grader. A caller
    that is cancelled while it is queued leaves no work behind."""
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    tell = partial(loop.call_soon_threadsafe, begun.set)

    def do() -> T:
        begin = _once(tell)
        try:
            return work(begin)
        finally:
            begin()  # the caller waits for `begin`, also after an exception

    job = threads.submit(do)
    try:
        async with waiting():
            await begun.wait()
        return await asyncio.wrap_future(job)
    finally:
        job.cancel()


def _once(tell: Callable[[], object]) -> Callable[[], None]:
    told = False

    def once() -> None:
        nonlocal told
        if not told:
            told = True
            with contextlib.suppress(RuntimeError):  # the caller's event loop is closed
                tell()

    return once
