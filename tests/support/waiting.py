"""Waiting for things to come to pass, never for ever."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any


def run(coroutine: Coroutine[Any, Any, Any], seconds: float = 120) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, seconds))


async def until(check: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.001)


def wait_until(check: Callable[[], object], seconds: float = 60) -> None:
    """`until`, where there is no event loop."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
