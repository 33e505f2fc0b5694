"""An engine with its thread, as tests time it and read from it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine

PARAMS = SamplingParams(max_tokens=60, seed=1, ignore_eos=True, detokenize=False)


def slowly(compute: Callable[[Any], Any], seconds: float = 0.001) -> Callable[[Any], Any]:
    """A step takes at least a millisecond, so that a long request is still running when a test looks."""

    def slow(step: Any) -> Any:
        time.sleep(seconds)
        return compute(step)

    return slow


class Pace:
    """Steps take their time as long as a test looks at what runs; from `hurry` on, as little as they can.

    What it looks at so cannot have ended before, however late a busy machine lets the test look.
    """

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute
        self._hurry = threading.Event()

    def __call__(self, step: Any) -> Any:
        self._hurry.wait(0.02)
        return self._compute(step)

    def hurry(self) -> None:
        self._hurry.set()

    def slow_down(self) -> None:
        self._hurry.clear()


def at_work(core: EngineCore, name: str | None = None, tokens: int = 2) -> Callable[[], bool]:
    """Whether a request, or the one of that name, has so many tokens."""

    def check() -> bool:
        running = list(core.scheduler.running)
        return any(r.generated >= tokens and name in (None, r.id) for r in running)

    return check


@contextmanager
def threaded(core: EngineCore) -> Iterator[AsyncEngine]:
    engine = AsyncEngine(core)
    try:
        yield engine
    finally:
        engine.stop()


class Heard(NamedTuple):
    """`tokens` of each sample."""

    tokens: list[list[int]]
    versions: list[int]
    reason: str | None


async def collect(
    engine: AsyncEngine,
    name: str,
    params: SamplingParams = PARAMS,
    prompt: Sequence[int] = (5, 6, 7),
    adapter: str | None = None,
) -> Heard:
    tokens: dict[int, list[int]] = {}
    versions: list[int] = []
    reason = None
    async for chunk in engine.generate(GenerateRequest(name, prompt, params, adapter=adapter)):
        tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
        versions += chunk.weight_versions
        reason = chunk.finish_reason or reason
    return Heard(list(tokens.values()), versions, reason)
