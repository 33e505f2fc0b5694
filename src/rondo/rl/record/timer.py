"""Where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rondo.train.evaluation.evaluator import Metrics

PHASES = ("rollout", "score", "known", "train", "push", "store")


@dataclass
class LoopTimer:
    """Seconds by phase, of the thread that trains: what goes on beside it is none of its time. Of a phase within
    another the inner one has the time."""

    graded: Callable[[], float] = lambda: 0.0
    """For how many seconds graders have been at work so far."""
    begin: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _inner: list[float] = field(default_factory=list)
    """Of each phase that is going on, the time of those within it."""
    _seen: float = 0.0
    """What graders did before the step, or while they were waited for."""

    def __post_init__(self) -> None:
        self._seen = self.graded()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin, graded = time.perf_counter(), self.graded()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - begin
            self.phases[phase] = self.phases.get(phase, 0.0) + took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took
            if phase == "score":
                self._seen += self.graded() - graded

    def metrics(self, tokens: int) -> Metrics:
        total = time.perf_counter() - self.begin
        seconds = {f"seconds/{phase}": value for phase, value in self.phases.items()}
        hidden = {"hidden/score": max(self.graded() - self._seen, 0.0)}
        return {"seconds": total, "tokens_per_second": tokens / total, **seconds, **hidden}
