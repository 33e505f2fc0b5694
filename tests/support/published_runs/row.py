"""One published run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rondo.plan.cost.cluster import GPUS, Cluster, Gpu
from rondo.plan.cost.layout import Layout, Policy, StepBatch
from rondo.plan.sizes.model import ModelShape


@dataclass(frozen=True)
class Row:
    name: str
    source: str
    shape: ModelShape
    cluster: Cluster
    layout: Layout
    policy: Policy
    batch: StepBatch
    speed: float | None = None
    memory: float | None = None
    reserved: bool = False
    """The memory is the allocator's alone, as PyTorch reports it."""
    fits: bool = True
    unmet: str = ""
    """Why the planner misses its memory or its speed, where it does."""
    note: str = ""
    """What the source leaves out, and is assumed."""


def row(
    name: str,
    source: str,
    shape: ModelShape,
    gpu: Gpu | str,
    batch: tuple[int, int],
    policy: Policy,
    *,
    gpus: int,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    virtual: int = 1,
    zero_bubble: bool = False,
    teraflops: float | None = None,
    causal: bool = True,
    **more: Any,
) -> Row:
    """`teraflops` is another way to say the speed; `causal` says how the source counted them."""
    if teraflops is not None:
        more["speed"] = teraflops * 1e12 / shape.flops_per_token(batch[1], causal=causal)
    schedule = (
        "zero-bubble" if zero_bubble else "interleaved" if virtual > 1 else "1f1b" if pp > 1 else "none"
    )
    layout = Layout(gpus // (tp * pp * cp), tp, pp, cp, ep, virtual, schedule)  # type: ignore[arg-type]
    return Row(
        name,
        source,
        shape,
        Cluster(GPUS[gpu] if isinstance(gpu, str) else gpu, gpus),
        layout,
        policy,
        StepBatch(*batch),
        **more,
    )
