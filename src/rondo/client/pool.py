"""Choice of an engine for a request: the one with the least outstanding work.

The RL loop's pool of remote engines and the router of a gateway use the same choice. The unit of work is theirs:
samples, tokens or characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(eq=False)
class PooledEngine:
    """One engine of a pool, at `url`, and its outstanding work."""

    url: str
    healthy: bool = True
    work: float = 0
    requests: int = 0
    last: int = 0
    """Number of the choice that took this engine last; engines with equal work take turns."""


Pooled = TypeVar("Pooled", bound=PooledEngine)


class LeastLoaded:
    """Chooses engines, and counts their outstanding work."""

    def __init__(self) -> None:
        self._choices = 0

    def choose(self, ready: Iterable[Pooled], saved: Callable[[Pooled], float] = lambda engine: 0) -> Pooled:
        """`saved` is the request's work that the engine avoids by its cache, less work that the pool does not count."""
        return min(ready, key=lambda engine: (engine.work - saved(engine), engine.requests, engine.last))

    def begin(self, engine: PooledEngine, work: float) -> None:
        self._choices += 1
        engine.last = self._choices
        engine.requests += 1
        engine.work += work

    def end(self, engine: PooledEngine, work: float) -> None:
        engine.requests -= 1
        engine.work = engine.work - work if engine.requests else 0  # without rounding errors of floats
