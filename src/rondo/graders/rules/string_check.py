"""OpenAI's `string_check`: comparison of two strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rondo.base.errors import ConfigError
from rondo.graders.definition.templates import NotInOutput, template
from rondo.graders.score import Sample, Score

Operation = Literal["eq", "ne", "like", "ilike"]


@dataclass(frozen=True)
class StringCheck:
    """Score of 1 or 0. `like`: the input contains the reference; `ilike`: the same, case-insensitive."""

    input: str
    reference: str
    operation: Operation

    def __post_init__(self) -> None:
        if self.operation not in ("eq", "ne", "like", "ilike"):
            raise ConfigError(
                f"operation is {self.operation!r}; it must be eq, ne, like or ilike.", param="operation"
            )
        template(self.input, "input")
        template(self.reference, "reference")

    def check_sample(self, sample: Sample) -> None:
        template(self.input, "input").check(sample)
        template(self.reference, "reference").check(sample)

    async def score(self, sample: Sample) -> Score:
        try:
            given = template(self.input, "input").fill(sample)
            reference = template(self.reference, "reference").fill(sample)
        except NotInOutput as error:
            return error.score()
        return Score("ok", float(self.holds(given, reference)))

    def holds(self, given: str, reference: str) -> bool:
        match self.operation:
            case "eq":
                return given == reference
            case "ne":
                return given != reference
            case "like":
                return reference in given
            case "ilike":
                return reference.casefold() in given.casefold()
