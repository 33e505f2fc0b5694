"""The planner for submitted jobs: a specification becomes a layout and a number of GPUs.

A request with GPUs and no layout receives the layout of `rondo plan` for the model. Without a number of GPUs it
receives the smallest power of two that fits, where the type of the GPUs is set.
"""

from __future__ import annotations

from dataclasses import replace

from rondo.base.errors import InvalidRequest
from rondo.jobs.spec import JobSpec
from rondo.plan.choice.planning import plan
from rondo.plan.choice.search import TRAINER, PlanningTask
from rondo.plan.cost.cluster import Cluster, gpu_of
from rondo.plan.cost.estimate import Estimate
from rondo.plan.cost.layout import StepBatch
from rondo.plan.job import config, layout
from rondo.plan.sizes.model import ModelShape

MOST_GPUS = 1024


def planned(spec: JobSpec, shape: ModelShape, gpu: str, tokens: int, length: int) -> JobSpec:
    """The specification with a layout and GPUs. `tokens` and `length` are those of a step and of a sequence."""
    settings = spec.settings
    if spec.kind == "rl" or settings.get("adapter.kind", "none") != "none":
        return spec
    if any(name.startswith("layout.") for name in settings):
        return spec
    batch = StepBatch(max(tokens // length, 1), length)
    told = spec.resources.get("gpus", 0)
    if told == 1:
        return spec
    chosen = _fitting(shape, gpu, batch, told) if told else _smallest(shape, gpu, batch)
    settings = {**_policy(chosen), **settings, **({} if chosen.layout.ranks == 1 else _layout(chosen))}
    gpus = chosen.cluster.gpus
    nodes = spec.resources.get("nodes") or -(-gpus // chosen.cluster.gpu.per_node)
    resources = {**spec.resources, "gpus": gpus, **({"nodes": nodes} if nodes > 1 else {})}
    return replace(spec, settings=settings, resources=resources)


def _layout(chosen: Estimate) -> dict[str, object]:
    return {f"layout.{name}": value for name, value in layout(chosen).items()}


def _policy(chosen: Estimate) -> dict[str, object]:
    """Settings on which the plan's memory depends; those of the request take precedence."""
    found = config(chosen)["train"]
    return {name: found[name] for name in ("precision", "checkpointing", "logits", "offload")}


def _fitting(shape: ModelShape, gpu: str, batch: StepBatch, gpus: int) -> Estimate:
    found = plan(PlanningTask(shape, Cluster(gpu_of(gpu), gpus), batch, TRAINER))
    if found.chosen is None or not found.chosen.fits:
        reasons = " ".join(found.reasons[:2])
        raise InvalidRequest(
            f"{shape.name} cannot be trained on {gpus} x {gpu}. {reasons}".strip(), param="resources.gpus"
        )
    return found.chosen


def _smallest(shape: ModelShape, gpu: str, batch: StepBatch) -> Estimate:
    gpus = 1
    while True:
        try:
            return _fitting(shape, gpu, batch, gpus)
        except InvalidRequest:
            gpus *= 2
            if gpus > MOST_GPUS:
                raise
