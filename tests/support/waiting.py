"""Waiting for things to come to pass, never for ever."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

LOAD = "TEST_SLOWNESS"
"""Of the environment: how many times as long as usual a test may wait. By default the machine's load says it."""


def scaled(seconds: float) -> float:
    """The limit of a wait that takes so long at most on an idle machine: longer where other programs share its cores,
    and where a sanitizer or an emulator slows everything down."""
    return seconds * slowness()


def slowness() -> float:
    told = os.environ.get(LOAD)
    if told:
        return max(1.0, float(told))
    return max(FEWEST, 1.0 + os.getloadavg()[0] / (os.cpu_count() or 1))


FEWEST = 4.0
"""A machine that is idle as a wait begins may not stay so."""
LONGEST = 0.25
"""Seconds between two looks."""


def run(coroutine: Coroutine[Any, Any, Any], seconds: float = 120) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, scaled(seconds)))


async def until(check: Callable[[], object], seconds: float = 60) -> None:
    begin, limit = time.monotonic(), scaled(seconds)
    while not check():
        past = time.monotonic() - begin
        assert past < limit, "it did not come to pass"
        await asyncio.sleep(_pause(past, 0.001))


def wait_until(check: Callable[[], object], seconds: float = 60) -> None:
    """`until`, where there is no event loop. Between two looks there is time for what they wait for: a request or a
    process at each would else take a core away from it."""
    begin, limit = time.monotonic(), scaled(seconds)
    while True:
        look = time.monotonic()
        if check():
            return
        now = time.monotonic()
        assert now - begin < limit, "it did not come to pass"
        time.sleep(_pause(now - begin, min(max(4 * (now - look), 0.01), LONGEST)))


def _pause(past: float, least: float) -> float:
    """Before the next look. A check may cost a server more than what is waited for: the longer it takes, the fewer."""
    return min(max(past / 20, least), LONGEST)
