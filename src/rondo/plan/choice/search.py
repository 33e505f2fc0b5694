"""The cost model's own choice: of all layouts and policies that divide, the fastest that fits."""

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
"""Of a GPU's memory: what a plan may need, since figures are true within a tenth."""
ALIKE = 1.05
"""Predictions are no truer than that: of plans that take hardly longer than the fastest, the one that divides the model
least is chosen."""
WIDE = 128
"""Among more ranks than these, gathering each layer waits on the slowest of many: of plans alike, one without it is
chosen."""
MOST_STAGES = 64
LONG = 16384
"""From this length on a sequence may be divided."""
MICROBATCHES = (1, 2, 4, 8, 16)
PINS = (
    *("dp", "tp", "pp", "cp", "cp_method", "ep", "virtual", "schedule"),
    *("zero", "microbatch", "checkpointing", "offload"),
)
"""What may be given."""


TRAINER = Policy(loss="chunked", swiglu="kernel", overlap=False, low_experts=False)
"""What `rondo train` does: tensor parallelism's traffic is not hidden, and experts multiply in 16 bits."""
MOST_VIRTUAL = 8
"""Pieces a stage that the search tries: with more of them the bubble shrinks little, and each waits for its
neighbours."""


@dataclass(frozen=True)
class PlanningTask:
    """What is to be planned. `policy` holds what is given; `pins` say which of the searched fields are given too."""

    shape: ModelShape
    cluster: Cluster
    batch: StepBatch
    policy: Policy = field(default_factory=lambda: TRAINER)
    pins: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchResult:
    """Plans that fit, fastest first; where none does, the one that needs the least."""

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
    """In host memory only where nothing else fits."""
    offloads = [task.pins["offload"]] if "offload" in task.pins else ["none", "optimizer", "all"]
    looked_at, nearest, reasons = 0, None, []
    for offload in offloads:
        plans: list[Estimate] = []
        full: set[tuple[Layout, int, str]] = set()  # with a larger microbatch it is no less
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
    """Fields of a layout that divides, but that `rondo train` does not take, each with the reason."""
    if layout.pieces > shape.layers:
        field = "pp" if layout.pp > shape.layers else "virtual" if layout.virtual > 1 else "schedule"
        yield field, f"{layout.pieces} pieces are more than the {shape.layers} layers of {shape.name}"
    if layout.virtual > 1 and layout.schedule != "interleaved":
        yield "virtual", f"{layout.virtual} pieces a stage need schedule interleaved"
    if layout.schedule == "interleaved" and layout.virtual == 1:
        yield "virtual", "schedule interleaved needs 2 or more pieces a stage"
    if shape.experts is not None and layout.ep == 1 and shape.experts.intermediate % layout.tp:
        yield "tp", f"{layout.tp} does not divide the {shape.experts.intermediate} neurons of an expert"
    if policy.offload == "all" and layout.ranks == 1:
        yield "offload", "all divides parameters among several ranks, and there is one"


def _of_pins(task: PlanningTask) -> tuple[str, str]:
    """Why no layout has the degrees that are given."""
    gpus, left = task.cluster.gpus, task.cluster.gpus
    for axis in ("tp", "pp", "cp", "dp"):
        degree = task.pins.get(axis, 1)
        if left % degree:
            return axis, f"{degree} does not divide {gpus} GPUs, or what the other degrees leave of them"
        left //= degree
    if task.pins.get("ep", 1) > 1 and task.shape.experts is None:
        return "ep", f"{task.shape.name} has no experts"
    return "gpus", f"no layout divides {gpus} as given"


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
    """Of two, up to `most`."""
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, MOST_STAGES) + 1) if number % n == 0]
