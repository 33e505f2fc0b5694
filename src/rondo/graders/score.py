"""Input and output of a grader: `Sample` and `Score`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from rondo.base.errors import InvalidRequest

Outcome = Literal["ok", "timeout", "error"]


@dataclass(frozen=True)
class Sample:
    prompt: str
    completion: str
    reference: str | tuple[str, ...] | None = None
    """The right answer, or several right answers."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """`total` is a reward only if `outcome` is "ok"; a failed grader has no score."""

    outcome: Outcome
    total: float
    parts: dict[str, float] = field(default_factory=dict)
    detail: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Details of failures by OpenAI's names, such as `sample_parse_error`."""

    def __post_init__(self) -> None:
        if self.outcome not in get_args(Outcome):
            raise ValueError(f"a score's outcome is ok, timeout or error, not {self.outcome!r}")
        if not all(map(math.isfinite, (self.total, *self.parts.values()))):
            raise ValueError(f"a score must be finite, not {self.total} with parts {self.parts}")
        # Converts numbers of numpy and tensors to Python floats.
        object.__setattr__(self, "total", float(self.total))
        object.__setattr__(self, "parts", {name: float(value) for name, value in self.parts.items()})


class Grader(Protocol):
    async def score(self, sample: Sample) -> Score: ...


def check_gradable(grader: Grader, sample: Sample) -> None:
    """Raises InvalidRequest if the sample lacks what the grader needs for any answer, such as a reference answer.
    Graders with such needs have a method `check_sample`."""
    check = getattr(grader, "check_sample", None)
    if check is not None:
        check(sample)


def references_of(sample: Sample) -> tuple[str, ...]:
    """The reference answers of a sample; raises InvalidRequest if there is none."""
    references = (sample.reference,) if isinstance(sample.reference, str) else sample.reference or ()
    if not references:
        raise InvalidRequest("the sample has no reference answer to compare with.", param="reference")
    return references


def judged(parts: dict[str, float], detail: str = "") -> Score:
    """A score whose total is the mean of its parts."""
    return Score("ok", sum(parts.values()) / len(parts), parts, detail)
