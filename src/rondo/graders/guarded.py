"""A grader's crash or time-out as an outcome of its own."""

import asyncio
from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.base.log import get_logger
from rondo.base.metrics import counter
from rondo.graders.score import Grader, Sample, Score

_log = get_logger(__name__)
_scores = counter("grader_scores", "Scores asked of graders, by how they ended.", ("grader", "outcome"))


@dataclass(frozen=True)
class Guarded:
    grader: Grader
    timeout_s: float
    name: str

    async def score(self, sample: Sample) -> Score:
        score = await self._score(sample)
        _scores.labels(self.name, score.outcome).inc()
        return score

    async def _score(self, sample: Sample) -> Score:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.grader.score(sample)
        except TimeoutError:
            return Score("timeout", 0.0, detail=f"{self.name} gave no score within {self.timeout_s:g} s")
        except Exception as error:
            _log.exception("grader failed", extra={"grader": self.name})
            return Score("error", 0.0, detail=f"{self.name} failed: {type(error).__name__}: {error}")


def guarded(grader: Grader, timeout_s: float, name: str | None = None) -> Guarded:
    """`grader`, never raising and never late.

    The limit holds where the grader awaits. One that computes for long belongs in a process of its own.
    """
    if timeout_s <= 0:
        raise ConfigError(f"a grader's timeout_s must be above 0, not {timeout_s}.")
    return Guarded(grader, timeout_s, name or type(grader).__name__)
