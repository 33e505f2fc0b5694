"""Torch's schedules as tables of actions, played out: how many microbatches they take, and how long ranks idle."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any

import pytest
from torch import nn
from torch.distributed.pipelining import schedules

from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.cut import microbatches, pieces_of, stage_of
from rondo.parallel.pipeline.pipeline import SCHEDULES
from rondo.plan.cost.layout import Layout
from rondo.plan.cost.memory import in_flight
from rondo.plan.cost.time import bubble_share

LAYOUTS = [
    LayoutConfig(pp=pp, schedule=schedule, virtual=virtual)
    for pp in (2, 3, 4)
    for schedule, virtual in [
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved", 2),
        ("interleaved", 3),
        ("zero-bubble", 1),
    ]
]


def _name(layout: LayoutConfig) -> str:
    return f"{layout.schedule}-{layout.pp}-{layout.virtual}"


@dataclass
class _Stage:
    """What a schedule wants to know of a stage before it runs."""

    num_stages: int
    group_size: int
    stage_index: int = 0
    group_rank: int = 0
    submod: nn.Module = field(default_factory=nn.Module)
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)


Action = tuple[int, str, int]
"""Piece, what is done, microbatch."""


def _table(layout: LayoutConfig, count: int) -> list[list[Action]]:
    """What each rank does, in order."""
    kind = schedules.get_schedule_class(SCHEDULES[layout.schedule])
    pieces = pieces_of(layout)
    stages: Any = [_Stage(pieces, layout.pp) for _ in range(pieces // layout.pp)]
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    schedule: Any = kind(stages[0] if single else stages, n_microbatches=count)
    return [list(_numbered(schedule.pipeline_order[rank])) for rank in range(layout.pp)]


def _numbered(actions: Sequence[Any]) -> Iterator[Action]:
    """Each piece goes through the microbatches in order; torch's table of 1F1B has one stage begin with the second."""
    seen: Counter[tuple[int, str]] = Counter()
    for action in actions:
        if action is not None and action.computation_type.value in "FIWB":
            key = (action.stage_index, action.computation_type.value)
            yield (*key, seen[key])
            seen[key] += 1


def _makespan(table: Sequence[Sequence[Action]], pieces: int, slots: Mapping[str, float]) -> float:
    """Each rank goes through its actions as soon as what they need is there."""
    done: dict[Action, float] = {}
    free = [0.0] * len(table)
    left = [list(actions) for actions in table]
    while any(left):
        before = len(done)
        for rank, actions in enumerate(left):
            while actions and all(
                any(each in done for each in needed) for needed in _needed(actions[0], pieces)
            ):
                action = actions.pop(0)
                ready = [done[each] for needed in _needed(action, pieces) for each in needed if each in done]
                free[rank] = done[action] = max([free[rank], *ready]) + slots[action[1]]
        assert len(done) > before, "ranks wait for one another"
    return max(free)


def _needed(action: Action, pieces: int) -> Iterator[list[Action]]:
    """Of each the one or the other."""
    piece, kind, i = action
    if kind == "F" and piece > 0:
        yield [(piece - 1, "F", i)]
    if kind in "IB":
        yield [(piece, "F", i)]
        if piece < pieces - 1:
            yield [(piece + 1, "I", i), (piece + 1, "B", i)]
    if kind == "W":
        yield [(piece, "I", i)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=_name)
def test_a_schedule_takes_what_it_is_given(layout: LayoutConfig) -> None:
    for rows in range(1, 14):
        count = microbatches(layout, rows)
        assert rows <= count < rows + layout.pp
        table = _table(layout, count)
        forward = sorted((piece, i) for actions in table for piece, kind, i in actions if kind == "F")
        assert forward == list(product(range(pieces_of(layout)), range(count)))
        for stage, actions in enumerate(table):
            assert {stage_of(layout, piece) for piece, _, _ in actions} == {stage}


@pytest.mark.parametrize("layout", LAYOUTS, ids=_name)
@pytest.mark.parametrize("rounds", [2, 4])
def test_the_planner_knows_how_long_ranks_idle_and_what_they_keep(layout: LayoutConfig, rounds: int) -> None:
    count = rounds * layout.pp
    table, pieces = _table(layout, count), pieces_of(layout)
    planned = Layout(pp=layout.pp, virtual=layout.virtual, schedule=layout.schedule)
    slots = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}
    busy = 3 * count * pieces / layout.pp
    assert _makespan(table, pieces, slots) / busy - 1 == pytest.approx(bubble_share(planned, count))
    for stage, actions in enumerate(table):
        changes = accumulate({"F": 1, "I": 0, "W": -1, "B": -1}[kind] for _, kind, _ in actions)
        assert max(changes) * layout.pp / pieces == in_flight(planned, count, stage)
