"""Reasons of a plan in plain words: each choice compared with the best plan without it."""

from __future__ import annotations

from collections.abc import Callable

from rondo.base.units import GIB
from rondo.plan.choice.search import SearchResult
from rondo.plan.cost.estimate import Estimate


def reasons(best: Estimate, found: SearchResult) -> list[str]:
    layout, policy = best.layout, best.policy
    words = [_of_memory(best)]
    if layout.tp > 1:
        words.append(_without(found, best, f"tp {layout.tp}", "tp 1", lambda p: p.layout.tp == 1))
    if layout.pp > 1:
        words.append(_without(found, best, f"pp {layout.pp}", "pp 1", lambda p: p.layout.pp == 1))
        words.append(_of_bubble(best))
    if layout.cp > 1:
        words.append(_without(found, best, f"cp {layout.cp}", "cp 1", lambda p: p.layout.cp == 1))
        words += _of_method(best, found)
    if layout.ep > 1:
        words.append(_without(found, best, f"ep {layout.ep}", "ep 1", lambda p: p.layout.ep == 1))
    if best.shape.experts is not None and layout.ep == 1:
        words.append(_without(found, best, "ep 1", "ep above 1", lambda p: p.layout.ep > 1))
    if policy.zero > 1 and layout.shards > 1:
        less = f"zero {policy.zero - 1} or less"
        words.append(
            _without(found, best, f"zero {policy.zero}", less, lambda p: p.policy.zero < policy.zero)
        )
    if policy.checkpointing != "none":
        words.append(
            _without(
                found,
                best,
                f"{policy.checkpointing} activation checkpointing",
                "no checkpointing",
                lambda p: p.policy.checkpointing == "none",
            )
        )
    if policy.microbatch > 1:
        words.append(
            _without(
                found,
                best,
                f"microbatch {policy.microbatch}",
                "microbatch 1",
                lambda p: p.policy.microbatch == 1,
            )
        )
    if policy.offload != "none":
        words.append(f"CPU offload ({policy.offload}): no plan fits without it")
    if layout.tp * layout.pp * layout.cp == 1 < best.cluster.gpus:
        axes = "data and expert parallelism" if layout.ep > 1 else "data parallelism"
        words.append(f"only {axes}: sharding layers over GPUs costs more than it gains")
    words.append(_where_time_goes(best))
    return words


def _of_memory(best: Estimate) -> str:
    whole = 16 * best.shape.parameters
    need, there = best.memory.total / GIB, best.cluster.gpu.memory / GIB
    return (
        f"model states of {best.shape.parameters / 1e9:.3g}B parameters: {whole / GIB:,.0f} GiB in total; "
        f"this plan's peak is {need:.1f} of {there:.1f} GiB per GPU"
    )


def _without(
    found: SearchResult, best: Estimate, what: str, instead: str, fine: Callable[[Estimate], bool]
) -> str:
    other = next((plan for plan in found.plans if fine(plan)), None)
    if other is None:
        return f"{what}: no plan fits with {instead}"
    more = other.seconds / best.seconds - 1
    if abs(more) < 0.005:
        return f"{what}: the best plan with {instead} is equally fast"
    if more < 0:
        return f"{what}: with {instead} a step is {-more:.0%} faster, within the model's accuracy"
    return f"{what}: with {instead} a step takes {more:.0%} longer"


def _of_bubble(best: Estimate) -> str:
    layout = best.layout
    pieces = f" with {layout.virtual} model chunks each" if layout.virtual > 1 else ""
    return (
        f"{layout.schedule}: {best.microbatches} microbatches over {layout.pp} stages{pieces}"
        f": {best.bubble:.1%} idle time (pipeline bubble)"
    )


NAMES = {
    "products": "matrix products",
    "between": "other operations",
    "starting": "kernel launches",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert parallelism",
    "pipeline": "pipeline transfers",
    "bubble": "pipeline bubble",
    "data": "data parallelism",
    "optimizer": "optimizer",
    "offload": "CPU offload",
}


def _of_method(best: Estimate, found: SearchResult) -> list[str]:
    method = best.layout.cp_method
    if all(plan.layout.cp_method == method for plan in found.plans if plan.layout.cp > 1):
        return []
    other, words = ("ring", "cp_method ring") if method == "ulysses" else ("ulysses", "cp_method ulysses")
    return [
        _without(
            found,
            best,
            f"cp_method {method}",
            words,
            lambda p: p.layout.cp == best.layout.cp and p.layout.cp_method == other,
        )
    ]


def _where_time_goes(best: Estimate) -> str:
    parts = sorted(vars(best.step).items(), key=lambda item: -item[1])
    shown = [
        f"{NAMES[name]} {seconds / best.seconds:.0%}"
        for name, seconds in parts
        if seconds > 0.01 * best.seconds
    ]
    return f"step time: {', '.join(shown)}"
