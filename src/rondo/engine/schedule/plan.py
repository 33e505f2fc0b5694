"""What the scheduler says of one step, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from rondo.engine.kv.groups import Moves
from rondo.engine.schedule.request import Request


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`decodes` move by one token, `chunks` by `request.planned`; both start at `request.computed`. Of the decodes,
    those in `ahead` may carry proposed tokens (see request.py), and are settled after the step.

    Before that, blocks move, in each group of layers: `copies` for samples that parted in the middle of one, `swap_out`
    from the device to the host and `swap_in` back.
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
    """Those preemptions after which nothing is computed again."""
