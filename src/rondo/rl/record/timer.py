"""Time of a step by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rondo.train.evaluation.evaluator import Metrics

PHASES = ("rollout", "score", "known", "train", "push", "store")


@dataclass
class LoopTimer:
    """Seconds by phase in the training thread; concurrent work is excluded. The time of a nested phase counts only
    for the inner phase.
    """

    graded: Callable[[], float] = lambda: 0.0
    """Returns the total seconds in which graders were busy."""
    begin: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _inner: list[float] = field(default_factory=list)
    """For each active phase, the time of its nested phases."""
    _seen: float = 0.0
    """Seconds of graders before the step or during a wait for them."""

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
