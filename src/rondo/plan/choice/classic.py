"""Classic layout rules: a matrix from the model's size to its layout, and a decision tree from the excess of memory
to ZeRO, checkpointing and offload.

| model | GPUs | layout |
|---|---|---|
| under 7B | 1-8 | DP |
| 7-30B | 8-64 | TP 8, DP |
| 30-100B | 64-512 | TP 8, PP 2-4, DP |
| 100-500B and more | 512-4096 | TP 8, PP 8-16, DP |
| with experts | any | EP, DP |

The tree uses the ratio of the memory required by one GPU of that layout, without sharding and recomputation, to its
memory: up to 1, DP and ZeRO-1; up to 4, ZeRO-2 and checkpointing; up to 10, ZeRO-3; beyond, ZeRO-3 and offload to
host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rondo.base.errors import ConfigError
from rondo.plan.choice.search import PlanningTask, powers, refusals
from rondo.plan.cost.estimate import Estimate
from rondo.plan.cost.layout import Layout, problems
from rondo.plan.cost.memory import memory


@dataclass(frozen=True)
class ClassicRule:
    """Layout of models with fewer than `most` parameters, intended for `gpus`."""

    words: str
    most: float
    gpus: tuple[int, int]
    tp: int
    pp: tuple[int, ...]


MATRIX = (
    ClassicRule("under 7B: DP", 7e9, (1, 8), 1, (1,)),
    ClassicRule("7-30B: TP 8 and DP", 30e9, (8, 64), 8, (1,)),
    ClassicRule("30-100B: TP 8, PP 2-4 and DP", 100e9, (64, 512), 8, (2, 4)),
    ClassicRule("100-500B: TP 8, PP 8-16 and DP", 500e9, (512, 4096), 8, (8, 16)),
    ClassicRule("over 500B: as 100-500B, TP 8, PP 8-16 and DP", float("inf"), (512, 1 << 30), 8, (8, 16)),
)


@dataclass(frozen=True)
class Branch:
    words: str
    most: float
    zero: Literal[1, 2, 3]
    checkpointing: Literal["none", "selective", "full"]
    offload: Literal["none", "optimizer", "all"]


TREE = (
    Branch("memory ratio up to 1: DP and ZeRO-1", 1.0, 1, "none", "none"),
    Branch("memory ratio up to 4: ZeRO-2 and activation checkpointing", 4.0, 2, "full", "none"),
    Branch("memory ratio 4 to 10: ZeRO-3 and activation checkpointing", 10.0, 3, "full", "none"),
    Branch(
        "memory ratio above 10: ZeRO-3, activation checkpointing and CPU offload",
        float("inf"),
        3,
        "full",
        "all",
    ),
)


@dataclass(frozen=True)
class Classic:
    """Result of the rules; `over` is the ratio of the memory required by one GPU to its memory."""

    plan: Estimate
    rule: str
    branch: str
    over: float
    notes: tuple[str, ...]


def classic(task: PlanningTask) -> Classic:
    notes: list[str] = []
    if task.shape.experts is not None:
        layout, rule = _of_experts(task, notes), "mixture of experts: EP and DP"
    else:
        found = next(rule for rule in MATRIX if task.shape.parameters < rule.most)
        layout, rule = _of_matrix(task, found, notes), found.words
        low, high = found.gpus
        if not low <= task.cluster.gpus <= high:
            notes.append(
                f"the rule is intended for {low} to {high} GPUs; this cluster has {task.cluster.gpus}"
            )
    policy = replace(task.policy, microbatch=1)
    over = memory(task.shape, layout, replace(policy, zero=0), task.batch).total / task.cluster.gpu.memory
    branch = next(branch for branch in TREE if over <= branch.most)
    policy = replace(policy, zero=branch.zero, checkpointing=branch.checkpointing, offload=branch.offload)
    plan = Estimate(task.shape, task.cluster, layout, policy, task.batch)
    wrong = next(problems(task.shape, task.cluster, layout, policy, task.batch), None)
    wrong = wrong or next(refusals(task.shape, layout, policy), None)
    if wrong is not None:
        raise ConfigError(
            f"The classic rules select {_degrees(layout)}, which is invalid: {wrong[0]}: {wrong[1]}.",
            param=wrong[0],
        )
    return Classic(plan, rule, branch.words, over, tuple(notes))


def _of_matrix(task: PlanningTask, rule: ClassicRule, notes: list[str]) -> Layout:
    """The rule's degrees as far as they divide the model and the cluster, with the smallest number of stages that
    fits.
    """
    gpus = task.cluster.gpus
    tp = _largest_power(rule.tp, lambda n: n <= task.cluster.node and gpus % n == 0 and not _cuts(task, n))
    if tp < rule.tp:
        notes.append(f"TP {tp}: TP {rule.tp} does not divide this model or this cluster")
    layouts = [
        Layout(gpus // (tp * pp), tp, pp, schedule="1f1b" if pp > 1 else "none")
        for pp in rule.pp
        if gpus % (tp * pp) == 0
    ]
    if not layouts:
        notes.append(f"no pipeline: {gpus} GPUs are not divisible by TP {tp} x PP {rule.pp[0]}")
        return Layout(gpus // tp, tp)
    for layout in layouts:
        policy = replace(task.policy, zero=3 if layout.shards > 1 else 1, checkpointing="full", microbatch=1)
        if memory(task.shape, layout, policy, task.batch).total <= task.cluster.gpu.memory:
            return layout
    return layouts[-1]


def _cuts(task: PlanningTask, tp: int) -> bool:
    """Whether `tp` does not divide the model."""
    shape = task.shape
    return bool(shape.heads % tp or shape.intermediate % tp or (shape.kv_heads % tp and tp % shape.kv_heads))


def _of_experts(task: PlanningTask, notes: list[str]) -> Layout:
    """Experts over the ranks of a node, or of more nodes if their states require it; pipeline stages only if the
    batch has fewer sequences than there are GPUs.
    """
    experts, cluster = task.shape.experts, task.cluster
    assert experts is not None
    states = 18 * task.shape.parameters / cluster.gpu.memory
    pp = next((n for n in powers(min(64, cluster.gpus)) if _shares(task, n)), 1)
    if pp > 1:
        notes.append(f"PP {pp}: {task.batch.sequences} sequences are not divisible by {cluster.gpus} GPUs")
    wanted = max(cluster.node, min(64, int(states)))
    ep = _largest_power(wanted, lambda n: experts.count % n == 0 and cluster.gpus // pp % n == 0)
    return Layout(cluster.gpus // pp, pp=pp, ep=ep, schedule="1f1b" if pp > 1 else "none")


def _shares(task: PlanningTask, pp: int) -> bool:
    gpus = task.cluster.gpus
    return gpus % pp == 0 and task.batch.sequences % (gpus // pp) == 0


def _largest_power(most: int, fine: Callable[[int], bool]) -> int:
    return max(n for n in powers(most) if fine(n) or n == 1)


def _degrees(layout: Layout) -> str:
    return ", ".join(f"{name} {getattr(layout, name)}" for name in ("dp", "tp", "pp", "ep"))


def agrees(plan: Estimate, rules: Classic) -> bool:
    """Whether both plans have the same model parallelism and the same memory policy."""
    ours, theirs = plan, rules.plan
    return (
        (ours.layout.tp, ours.layout.pp, ours.layout.cp, ours.layout.ep)
        == (theirs.layout.tp, theirs.layout.pp, theirs.layout.cp, theirs.layout.ep)
    ) and _kept(ours) == _kept(theirs)


def _kept(plan: Estimate) -> tuple[int, str, str]:
    """ZeRO stage (0 with one shard), checkpointing and offload of a plan."""
    zero = plan.policy.zero if plan.layout.shards > 1 else 0
    return zero, plan.policy.checkpointing, plan.policy.offload
