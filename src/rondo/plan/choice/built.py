"""Results of a dry run without memory: groups of equal ranks, with the parameters and memory of one rank of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondo.base.units import GIB, human_count
from rondo.plan.cost.estimate import Estimate
from rondo.plan.report import table


@dataclass(frozen=True)
class Kind:
    """Equal ranks, with figures of one of them. `dense` and `experts` count its parameters before sharding over
    data-parallel ranks, `divided` after. `memory` is the planner's figure with these parameters.
    """

    stage: int
    tp_rank: int
    ranks: int
    layers: int
    dense: int
    experts: int
    divided: int
    planned: float
    memory: float
    planned_memory: float


TITLES = [
    "stage",
    "tp rank",
    "ranks",
    "layers",
    "parameters",
    "planned",
    "sharded",
    "memory",
    "planned",
]


def lines(kinds: Sequence[Kind], plan: Estimate) -> list[str]:
    ranks = sum(kind.ranks for kind in kinds)
    most, room = max(kind.memory for kind in kinds), plan.cluster.gpu.memory
    verdict = "fits" if most <= room else "does NOT fit"
    return [
        f"dry run: {ranks:,} ranks of {len(kinds)} kinds, one rank of each built and run forward and backward",
        *table([TITLES, *map(_row, kinds)]),
        f"peak memory {most / GIB:.1f} of {room / GIB:.1f} GiB per GPU: {verdict}",
    ]


def _row(kind: Kind) -> list[str]:
    return [
        str(kind.stage),
        str(kind.tp_rank),
        f"{kind.ranks:,}",
        str(kind.layers),
        human_count(kind.dense + kind.experts),
        human_count(round(kind.planned)),
        human_count(kind.divided),
        f"{kind.memory / GIB:.1f} GiB",
        f"{kind.planned_memory / GIB:.1f} GiB",
    ]
