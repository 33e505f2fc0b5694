"""Types of tasks: problems, their split into training and held-out ones, and the interface of every task."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rondo.graders import Sample, Score

Split = Literal["train", "held_out"]
Facts = dict[str, Any]

HELD_OUT_SHARE = 8
"""One in this many questions is held out for evaluation. The split follows from the question's hash, so that no seed
trains on a held-out question.
"""


@dataclass(frozen=True)
class Problem:
    question: str
    facts: Facts
    given: tuple[Mapping[str, Any], ...] = ()
    """Messages of the prompt, if it is more than the question."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [dict(message) for message in self.given] or [{"role": "user", "content": self.question}]


class AnyTask(Protocol):
    """Interface of tasks: built-in, from a file (`files.py`) or user-defined (`custom.py`)."""

    @property
    def name(self) -> str: ...

    @property
    def max_tokens(self) -> int: ...

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        """Problems, deterministic for a seed; the splits are disjoint."""

    async def score(self, sample: Sample) -> Score:
        """Score a sample; `sample.metadata` has the problem's facts and `finished`."""


def split_of(question: str) -> Split:
    return "held_out" if zlib.crc32(question.encode()) % HELD_OUT_SHARE == 0 else "train"
