"""The complete training plan: the cost model's choice compared with the classic rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rondo.base.errors import ConfigError
from rondo.base.units import GIB
from rondo.plan.choice.classic import Classic, agrees, classic
from rondo.plan.choice.reasons import reasons
from rondo.plan.choice.search import ROOM, PlanningTask, SearchResult, search
from rondo.plan.cost.estimate import Estimate

Profile = Literal["cost", "classic"]
MOST_GPUS = 1 << 20


@dataclass(frozen=True)
class TrainingPlan:
    """`chosen` is the plan to run, selected from `cost` and `rules` by the profile. If `cost` is None, no plan fits,
    and `reasons` has the requirements of a plan that would.
    """

    profile: Profile
    task: PlanningTask
    found: SearchResult
    cost: Estimate | None
    rules: Classic | None
    no_rules: str
    reasons: list[str]

    @property
    def chosen(self) -> Estimate | None:
        if self.profile == "classic":
            return self.rules.plan if self.rules else None
        return self.cost

    @property
    def agrees(self) -> bool:
        return self.cost is not None and self.rules is not None and agrees(self.cost, self.rules)


def plan(task: PlanningTask, profile: Profile = "cost") -> TrainingPlan:
    found = search(task)
    rules, no_rules = None, ""
    try:
        rules = classic(task)
    except ConfigError as error:
        if profile == "classic":
            raise
        no_rules = error.message
    best = found.best
    if profile == "classic" and rules is not None:
        words = _of_rules(rules)
    elif best is not None:
        words = reasons(best, found)
    else:
        words = _what_would_fit(task, found)
    return TrainingPlan(profile, task, found, best, rules, no_rules, words)


def _of_rules(rules: Classic) -> list[str]:
    words = [
        f"matrix: {rules.rule}",
        f"tree: without sharding a GPU needs {rules.over:.1f} times its memory; {rules.branch}",
        *rules.notes,
    ]
    if not rules.plan.fits:
        need, there = rules.plan.memory.total / GIB, rules.plan.cluster.gpu.memory / GIB
        words.append(f"out of memory: {need:.1f} of {there:.1f} GiB per GPU")
    return words


def _what_would_fit(task: PlanningTask, found: SearchResult) -> list[str]:
    nearest = found.nearest
    assert nearest is not None
    need, there = nearest.memory.total / GIB, ROOM * task.cluster.gpu.memory / GIB
    words = [f"no plan fits: the smallest one needs {need:.1f} GiB per GPU, and {there:.1f} GiB are usable"]
    if need <= there:
        host, room = nearest.memory.host / GIB, task.cluster.gpu.host_memory / GIB
        words = [
            f"no plan fits: the smallest one needs {host:.1f} GiB of host memory per GPU, and {room:.1f} GiB are "
            "available (--host-memory)"
        ]
    gpus = task.cluster.gpus
    while (gpus := 2 * gpus) <= min(MOST_GPUS, 64 * task.cluster.gpus):
        more = replace(task, cluster=replace(task.cluster, gpus=gpus))
        try:
            enough = search(more).plans
        except ConfigError:
            continue
        if enough:
            words.append(f"with {gpus} of these GPUs a plan fits")
            break
    return words
