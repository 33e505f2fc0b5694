"""A user's own function as a grader. It runs in the process pool, so a computation, hang or crash blocks no other
grader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from rondo.base.entry import load_entry
from rondo.base.errors import ConfigError
from rondo.graders.definition.templates import item_of
from rondo.graders.processes import pool
from rondo.graders.score import Sample, Score, judged


@dataclass(frozen=True)
class FunctionGrader:
    """Calls `module:name` or `file.py:name` with the record and the answer; it returns a number, or named parts."""

    function: str
    seconds: float = pool.SECONDS
    pass_env: tuple[str, ...] = ()
    """Names of environment variables that the function needs, such as an API key."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ConfigError(f"seconds is {self.seconds}; it must be above 0.", param="seconds")
        if not callable(load_entry(self.function, "function")):
            raise ConfigError(f"{self.function} is no function.", param="function")

    async def score(self, sample: Sample) -> Score:
        try:
            found = await pool.call(
                self.function,
                dict(item_of(sample)),
                sample.completion,
                seconds=self.seconds,
                env={name: os.environ[name] for name in self.pass_env if name in os.environ},
            )
        except TimeoutError as error:
            return Score("timeout", 0.0, detail=str(error))
        return score_of(found, self.function)


def score_of(found: Any, who: str) -> Score:
    """Score from the return value of a user's function; the total of several parts is their mean."""
    if isinstance(found, Mapping) and found:
        return judged({str(name): _number(value, f"{who}: {name}") for name, value in found.items()})
    return Score("ok", _number(found, who))


def _number(value: Any, who: str) -> float:
    """True and false count as 1 and 0. NaN is rejected by `Score`."""
    if not isinstance(value, Real):
        raise ConfigError(f"{who} must be a number, or parts by name, not {str(value)[:100]!r}.")
    return float(value)
