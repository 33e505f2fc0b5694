"""Output of one step of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.engine.schedule.request import Request


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of a step: `advanced` received one token each, and `extra` counts further tokens from accepted drafts;
    `finished` have ended with their last token or an error; `admitted` have started to run."""

    advanced: list[Request]
    finished: list[Request]
    admitted: list[Request]
    extra: int = 0


NOTHING = StepOutput([], [], [])
