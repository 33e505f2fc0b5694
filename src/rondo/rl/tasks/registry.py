"""Lookup of tasks by name, and the built-in tasks with seeded problems and rewards by parts."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.base.entry import is_entry
from rondo.base.errors import ConfigError, NotFound
from rondo.graders import Sample, Score
from rondo.rl.tasks import puzzles
from rondo.rl.tasks.custom import load_task
from rondo.rl.tasks.files import dataset_task, read_task
from rondo.rl.tasks.games import GAMES
from rondo.rl.tasks.types import AnyTask, Facts, Problem, Split, split_of


@dataclass(frozen=True)
class Task:
    name: str
    about: str
    make: Callable[[random.Random], tuple[str, Facts]]
    solve: Callable[[Facts], str]
    """The reference solution, used for SFT."""
    grade: Callable[[Facts, str], dict[str, float]]
    """Reward of each part in [0, 1]. `correct` is 1 exactly for a correct answer."""
    shares: Mapping[str, float]
    """Weight of each part in the total; the sum is 1."""
    max_tokens: int
    same: Callable[[Facts], str] | None = None
    """Key that is equal for problems that differ only in the order of their numbers; default: the question."""

    def split(self, question: str, facts: Facts) -> Split:
        """The split of a problem. Equivalent problems are in the same split, so that no held-out problem has an
        equivalent in the training split.
        """
        return split_of(question if self.same is None else f"{self.name} {self.same(facts)}")

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        """Problems, deterministic for a seed; the splits are disjoint."""
        source = random.Random(f"{self.name}:{split}:{seed}")
        problems: list[Problem] = []
        while len(problems) < n:
            question, facts = self.make(source)
            if self.split(question, facts) == split:
                problems.append(Problem(question, facts))
        return problems

    async def score(self, sample: Sample) -> Score:
        """Score a sample. A truncated answer has neither the format nor the correctness reward."""
        parts = self.grade(dict(sample.metadata), sample.completion)
        if not sample.metadata.get("finished", True):
            parts |= {name: 0.0 for name in ("format", "correct") if name in parts}
        return Score("ok", self.total(parts), parts)

    def total(self, parts: Mapping[str, float]) -> float:
        return sum(share * parts[name] for name, share in self.shares.items())


def task(name: str) -> Task:
    """A built-in task."""
    if name.endswith(".py"):
        raise NotFound(f"Which task in {name}? Give its name too: {name}:TASK.", param="task")
    if name not in TASKS:
        near = difflib.get_close_matches(name, [*TASKS, *GAMES], 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise NotFound(
            f"There is no task {name!r}.{hint} Tasks: {', '.join(TASKS)}, guess, calculator; a file that ends in "
            f"{', '.join(FILES)}; a data set ORG/NAME[:SPLIT]; or one of your own, as module:attribute or "
            "file.py:attribute.",
            param="task",
        )
    return TASKS[name]


def find(name: str, grader: Mapping[str, Any] | None = None, max_broken: int = 0) -> AnyTask:
    """Find a task by the name of a built-in task, a JSON Lines file, a data set of the Hugging Face Hub,
    `module:attribute` or `file.py:attribute`.

    `grader` and `max_broken` apply to files and data sets: the grader of answers, and the number of malformed records
    to skip.
    """
    if is_records(name):
        return read_task(name, grader or {}, max_broken)
    if grader:
        raise ConfigError(
            f"the task {name!r} grades its own answers; a grader is for a file.", param="rl.grader"
        )
    if max_broken:
        raise ConfigError(
            f"max_broken counts lines of a file, and the task {name!r} is none: leave it at 0.",
            param="rl.max_broken",
        )
    if is_entry(name):
        return load_task(name)
    return GAMES[name] if name in GAMES else task(name)


def is_records(name: str) -> bool:
    """Whether the task is a file or a data set."""
    return name.endswith(FILES) or dataset_task(name) is not None


FILES = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst")


def fingerprint(task: AnyTask) -> str | None:
    """Hash of the file with the task's problems or code, if it has one."""
    found = getattr(task, "fingerprint", None)
    return found if isinstance(found, str) else None


_SHARES = {"format": 0.1, "length": 0.1, "places": 0.4, "correct": 0.4}


def _registry(tasks: Sequence[Task]) -> dict[str, Task]:
    return {each.name: each for each in tasks}


TASKS = _registry(
    [
        Task(
            name="reverse",
            about="say a word of capital letters backwards: reverse PLANET",
            make=puzzles.make_reverse,
            solve=puzzles.solve_reverse,
            grade=puzzles.grade_reverse,
            shares=_SHARES,
            max_tokens=10,
        ),
        Task(
            name="add",
            about="add two numbers, working line by line: add 47 and 38",
            make=puzzles.make_add,
            solve=puzzles.solve_add,
            grade=puzzles.grade_add,
            shares=_SHARES,
            max_tokens=24,
            same=puzzles.same_add,
        ),
        Task(
            name="sort",
            about="sort digits: sort 5 3 9 1",
            make=puzzles.make_sort,
            solve=puzzles.solve_sort,
            grade=puzzles.grade_sort,
            shares=_SHARES,
            max_tokens=14,
            same=puzzles.same_sort,
        ),
        Task(
            name="countdown",
            about="reach a number with three others, each used once: countdown 3 7 2 to 20",
            make=puzzles.make_countdown,
            solve=puzzles.solve_countdown,
            grade=puzzles.grade_countdown,
            shares={"format": 0.2, "numbers": 0.3, "near": 0.1, "correct": 0.4},
            max_tokens=16,
            same=puzzles.same_countdown,
        ),
    ]
)
