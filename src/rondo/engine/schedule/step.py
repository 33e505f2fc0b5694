"""What one step of the engine brought."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.engine.schedule.request import Request


@dataclass(frozen=True, slots=True)
class StepOutput:
    """`advanced` got a token each, and `extra` more came from accepted proposals; `finished` are done, with their last
    token or an error; `admitted` began to run."""

    advanced: list[Request]
    finished: list[Request]
    admitted: list[Request]
    extra: int = 0


NOTHING = StepOutput([], [], [])
