"""Search of the cost model: the fastest fitting plan of all valid layouts and policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from rondo.base.errors import ConfigError
from rondo.plan.cost.cluster import Cluster
from rondo.plan.cost.estimate import Estimate
from rondo.plan.cost.layout import ContextMethod, Layout, Policy, Schedule, StepBatch, microbatches, problems
from rondo.plan.sizes.model import ModelShape

ROOM = 0.95
"""Share of a GPU's memory that a plan may use, because predictions are accurate within a tenth."""
ALIKE = 1.05
"""Accuracy of predicted times. Among the plans within this ratio of the fastest, the plan with the least model
parallelism is chosen.
"""
WIDE = 128
"""Number of ranks above which gathering each layer waits for the slowest of many; among equal plans one without it is
preferred.
"""
MOST_STAGES = 64
LONG = 16384
"""Minimum sequence length for context parallelism."""
MICROBATCHES = (1, 2, 4, 8, 16)
PINS = (
    *("dp", "tp", "pp", "cp", "cp_method", "ep", "virtual", "schedule"),
    *("zero", "microbatch", "checkpointing", "offload"),
)
"""Fields that the user can fix."""


TRAINER = Policy(loss="chunked", swiglu="kernel", overlap=False, low_experts=False)
"""Policy of `rondo train`: tensor parallelism's traffic is not hidden, and experts are multiplied in 16 bits."""
MOST_VIRTUAL = 8
"""Maximum pieces per stage in the search: more pieces hardly shrink the bubble, and each piece waits for its
neighbours.
"""


@dataclass(frozen=True)
class PlanningTask:
    """Input of the search. `policy` has the fixed settings; `pins` has the fixed values of searched fields."""

    shape: ModelShape
    cluster: Cluster
    batch: StepBatch
    policy: Policy = field(default_factory=lambda: TRAINER)
    pins: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchResult:
    """Fitting plans, fastest first; if there are none, the plan with the lowest memory."""

    plans: list[Estimate]
    nearest: Estimate | None
    looked_at: int

    @property
    def best(self) -> Estimate | None:
        if not self.plans:
            return None
        alike = [plan for plan in self.plans if plan.seconds <= ALIKE * self.plans[0].seconds]
        return min(alike, key=_trouble)


def _trouble(plan: Estimate) -> tuple[bool, int, int, float]:
    layout, zero = plan.layout, plan.policy.zero
    wide = zero == 3 and layout.shards > WIDE
    return wide, layout.tp * layout.pp * layout.cp, zero, plan.seconds


def search(task: PlanningTask) -> SearchResult:
    """Search all layouts; offload to host memory is tried only if nothing fits without it."""
    offloads = [task.pins["offload"]] if "offload" in task.pins else ["none", "optimizer", "all"]
    looked_at, nearest, reasons = 0, None, []
    for offload in offloads:
        plans: list[Estimate] = []
        full: set[tuple[Layout, int, str]] = set()  # a larger microbatch does not fit either
        for layout, policy in _choices(task, offload):
            kind = (layout, policy.zero, policy.checkpointing)
            if kind in full:
                continue
            wrong = next(problems(task.shape, task.cluster, layout, policy, task.batch), None)
            wrong = wrong or next(refusals(task.shape, layout, policy), None)
            if wrong is not None:
                reasons.append(wrong)
                continue
            looked_at += 1
            plan = Estimate(task.shape, task.cluster, layout, policy, task.batch)
            if plan.fits_in(ROOM * task.cluster.gpu.memory):
                plans.append(plan)
                continue
            full.add(kind)
            if nearest is None or plan.memory.total < nearest.memory.total:
                nearest = plan
        if plans:
            plans.sort(key=lambda plan: plan.seconds)
            return SearchResult(plans, None, looked_at)
    if nearest is None:
        where, reason = reasons[0] if reasons else _of_pins(task)
        raise ConfigError(f"No layout is possible with these settings. {where}: {reason}.", param=where)
    return SearchResult([], nearest, looked_at)


def refusals(shape: ModelShape, layout: Layout, policy: Policy) -> Iterator[tuple[str, str]]:
    """Fields of a valid layout that `rondo train` does not support, each with the reason."""
    if layout.pieces > shape.layers:
        field = "pp" if layout.pp > shape.layers else "virtual" if layout.virtual > 1 else "schedule"
        yield field, f"{layout.pieces} model chunks are more than the {shape.layers} layers of {shape.name}"
    if layout.virtual > 1 and layout.schedule != "interleaved":
        yield "virtual", f"{layout.virtual} model chunks per stage need schedule interleaved"
    if layout.schedule == "interleaved" and layout.virtual == 1:
        yield "virtual", "schedule interleaved needs 2 or more model chunks per stage"
    if shape.experts is not None and layout.ep == 1 and shape.experts.intermediate % layout.tp:
        yield "tp", f"{layout.tp} does not divide the {shape.experts.intermediate} neurons of an expert"
    if policy.offload == "all" and layout.ranks == 1:
        yield "offload", "all needs several ranks to shard parameters over; this layout has one"


def _of_pins(task: PlanningTask) -> tuple[str, str]:
    """The reason that no layout has the fixed degrees."""
    gpus, left = task.cluster.gpus, task.cluster.gpus
    for axis in ("tp", "pp", "cp", "dp"):
        degree = task.pins.get(axis, 1)
        if left % degree:
            return axis, f"{degree} does not divide {gpus} GPUs, or the GPUs per group of the other degrees"
        left //= degree
    if task.pins.get("ep", 1) > 1 and task.shape.experts is None:
        return "ep", f"{task.shape.name} has no experts"
    return "gpus", f"no layout with these degrees uses {gpus} GPUs"


def _choices(task: PlanningTask, offload: str) -> Iterator[tuple[Layout, Policy]]:
    for layout in _layouts(task):
        for policy in _policies(task, layout, offload):
            for virtual in _virtual(task, layout, policy):
                for schedule in _schedules(task, layout.pp, virtual):
                    yield replace(layout, virtual=virtual, schedule=schedule), policy


def _schedules(task: PlanningTask, stages: int, virtual: int) -> list[Schedule]:
    if stages == 1:
        return ["none"]
    return _pinned(task.pins, "schedule", ["interleaved"] if virtual > 1 else ["1f1b", "zero-bubble"])


def _layouts(task: PlanningTask) -> Iterator[Layout]:
    gpus, shape = task.cluster.gpus, task.shape
    pins = task.pins
    tps = _pinned(pins, "tp", powers(task.cluster.node))
    pps = _pinned(pins, "pp", [n for n in _divisors(gpus) if n <= shape.layers])
    cps = _pinned(pins, "cp", powers(32) if task.batch.length >= LONG else [1])
    for tp, pp, cp in product(tps, pps, cps):
        dp = pins.get("dp") or max(1, gpus // (tp * pp * cp))
        if "dp" not in pins and dp * tp * pp * cp != gpus and not {"tp", "pp", "cp"} <= pins.keys():
            continue
        whole = shape.experts.count if shape.experts else 1
        for ep in _pinned(pins, "ep", [n for n in powers(whole) if n <= dp * cp * tp]):
            for method in _methods(task, tp, cp):
                yield Layout(dp, tp, pp, cp, ep, cp_method=method)


def _methods(task: PlanningTask, tp: int, cp: int) -> list[ContextMethod]:
    if cp == 1:
        return ["ring"]
    whole = task.shape.heads % (tp * cp) == 0
    return _pinned(task.pins, "cp_method", ["ulysses", "ring"] if whole else ["ring"])


def _policies(task: PlanningTask, layout: Layout, offload: str) -> Iterator[Policy]:
    zeros = _pinned(task.pins, "zero", [3] if offload == "all" else [1, 2, 3] if layout.shards > 1 else [1])
    kept = _pinned(task.pins, "checkpointing", ["none", "selective", "full"])
    most = max(1, task.batch.sequences // layout.dp)
    each = _pinned(task.pins, "microbatch", [n for n in MICROBATCHES if n <= most])
    for zero, checkpointing, microbatch in product(zeros, kept, each):
        yield replace(
            task.policy,
            zero=zero,
            checkpointing=checkpointing,
            microbatch=microbatch,
            offload=offload,  # type: ignore[arg-type]
        )


def _virtual(task: PlanningTask, layout: Layout, policy: Policy) -> Iterable[int]:
    if "virtual" in task.pins:
        return [task.pins["virtual"]]
    if layout.pp == 1 or task.pins.get("schedule") in ("1f1b", "gpipe", "zero-bubble"):
        return [1]
    if microbatches(layout, policy, task.batch) % layout.pp:
        return [1]
    most = min(MOST_VIRTUAL, task.shape.layers // layout.pp)
    return powers(most)


def _pinned(pins: Mapping[str, Any], name: str, otherwise: Iterable[Any]) -> list[Any]:
    return [pins[name]] if name in pins else list(otherwise)


def powers(most: int) -> list[int]:
    """Powers of two up to `most`."""
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, MOST_STAGES) + 1) if number % n == 0]
