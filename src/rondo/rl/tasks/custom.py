"""User-defined Python tasks, loaded by `module:attribute` or `file.py:attribute`.

The attribute is a `Custom`, any object with the methods of a task (`tasks.AnyTask`), a function or class without
arguments that returns one, or an environment class (`environment.Environment`).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rondo.base.entry import load_entry, source_hash
from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders import Sample, Score
from rondo.graders.execution.function import FunctionGrader, score_of
from rondo.graders.processes.pool import SECONDS
from rondo.rl.environments.environment import Environment
from rondo.rl.tasks.games import Game
from rondo.rl.tasks.types import AnyTask, Facts, Problem, Split, split_of

PARAM = "rl.task"
TRIES = 1000
"""Consecutive questions of the other split after which the task fails."""

Grade = Callable[[Facts, str], Any]


@dataclass(frozen=True)
class Custom:
    """A task from two functions. `make(random)` returns a question and the facts for its grader. `grade(facts,
    answer)` returns a number, or parts by name, and may be a coroutine. A grader that computes for long or can
    hang is specified by name (`"file.py:grade"`) and runs in a separate process with a time limit.
    """

    make: Callable[[random.Random], tuple[str | Sequence[Mapping[str, Any]], Facts]]
    grade: Grade | str
    max_tokens: int = 256
    seconds: float = SECONDS
    """Time limit of a `grade` specified by name."""
    pass_env: Sequence[str] = ()
    """Additional environment variables of the process of a named `grade`, beside PATH and the like."""
    name: str = "custom"
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; it must be at least 1.", param=PARAM)

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        source = random.Random(f"{self.name}:{split}:{seed}")
        problems: list[Problem] = []
        since = 0
        while len(problems) < n:
            problem = self._problem(source)
            if split_of(problem.question) == split:
                problems.append(problem)
                since = 0
            elif (since := since + 1) > TRIES:
                raise InvalidRequest(
                    f"{self.name}: of {TRIES} questions in a row none was in the split {split}: "
                    "make more different ones.",
                    param=PARAM,
                )
        return problems

    async def score(self, sample: Sample) -> Score:
        facts = {key: value for key, value in sample.metadata.items() if key != "finished"}
        if isinstance(self.grade, str):
            return await FunctionGrader(self.grade, self.seconds, pass_env=tuple(self.pass_env)).score(
                replace(sample, metadata={"item": facts})
            )
        found = self.grade(facts, sample.completion)
        if inspect.isawaitable(found):
            found = await found
        return found if isinstance(found, Score) else score_of(found, f"{self.name}'s grade")

    def _problem(self, source: random.Random) -> Problem:
        made = self.make(source)
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)):
            raise InvalidRequest(
                f"{self.name}: make must return a question and a dict of facts, not {str(made)[:100]!r}.",
                param=PARAM,
            )
        asked, facts = made
        if isinstance(asked, str):
            return Problem(asked, facts)
        return Problem("\n".join(f"{each['role']}: {each['content']}" for each in asked), facts, tuple(asked))


def load_task(entry: str) -> AnyTask:
    found: Any = load_entry(entry, PARAM)
    if inspect.isclass(found) and hasattr(found, "reset") and hasattr(found, "step"):
        found = Game(found.__name__.lower(), cast(Callable[[], Environment], found))
    if inspect.isclass(found) or (inspect.isroutine(found) and not isinstance(found, Custom)):
        try:
            found = found()
        except Exception as error:  # user code may raise anything
            raise ConfigError(f"{entry}() raised {type(error).__name__}: {error}", param=PARAM) from error
    missing = [verb for verb in ("name", "max_tokens", "prompts", "score") if not hasattr(found, verb)]
    if missing:
        raise ConfigError(
            f"{entry} is no task: it lacks {', '.join(missing)}. "
            "The short way to one is rondo.rl.tasks.custom.Custom(make, grade).",
            param=PARAM,
        )
    if isinstance(found, Custom):
        name = entry.rpartition(":")[2].lower() if found.name == "custom" else found.name
        found = replace(found, name=name, fingerprint=source_hash(entry))
    if isinstance(found, Game):
        found.fingerprint = source_hash(entry)
    return cast(AnyTask, found)
