"""The scheduler's plan of one step, and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from rondo.engine.kv.groups import Moves
from rondo.engine.schedule.request import Request


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Requests and block moves of a step.

    `decodes` advance by one token, `chunks` by `request.planned`; both start at `request.computed`. The decodes in
    `ahead` may carry draft tokens (see request.py), which are settled after the step.

    Blocks move before the step, in each group of layers: `copies` for samples that fork in the middle of a block,
    `swap_out` from the device to the host and `swap_in` back.
    """

    decodes: list[Request]
    chunks: list[Request]
    admitted: list[Request]
    preempted: list[Request]
    copies: Moves = field(default_factory=list)
    ahead: list[Request] = field(default_factory=list)
    swap_out: Moves = field(default_factory=list)
    swap_in: Moves = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks


@dataclass(slots=True)
class Counters:
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    moved: int = 0
    """Tokens computed in all steps."""
    swaps: int = 0
    """Preemptions by swapping, which need no recomputation."""
