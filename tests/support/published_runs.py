"""Training runs that others published, read from `published_runs.toml`: the planner is compared with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rondo.plan.cost.cluster import GPUS, Cluster
from rondo.plan.cost.layout import Layout, Policy, StepBatch
from rondo.plan.sizes.model import ModelShape
from rondo.plan.sizes.shapes import SHAPES, gpt

DEGREES = ("tp", "pp", "cp", "ep", "virtual")
COPIED = ("name", "source", "memory", "reserved", "fits", "unmet", "note")


@dataclass(frozen=True)
class Row:
    """One published run."""

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
    fits: bool = True
    unmet: str = ""
    note: str = ""
    fitted: frozenset[str] = frozenset()


def rows() -> list[Row]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["source"]
    return [_row(source, run) for source in tables for run in source.pop("runs")]


def _row(source: Mapping[str, Any], run: Mapping[str, Any]) -> Row:
    given = {**source, **run, "policy": source.get("policy", {}) | run.get("policy", {})}
    shape, batch = _shape(given), StepBatch(*given["batch"])
    gpu = GPUS[given["gpu"]]
    return Row(
        shape=shape,
        cluster=Cluster(replace(gpu, network=given.get("network", gpu.network)), given["gpus"]),
        layout=_layout(given),
        policy=Policy(**given["policy"]),
        batch=batch,
        speed=_speed(given, shape, batch),
        fitted=frozenset(given.get("fitted", ())),
        **{name: given[name] for name in COPIED if name in given},
    )


def _shape(given: Mapping[str, Any]) -> ModelShape:
    if "model" in given:
        return SHAPES[given["model"]]
    return gpt("gpt", *given["gpt"], given["vocab"], given.get("tied", True))


def _layout(given: Mapping[str, Any]) -> Layout:
    tp, pp, cp, ep, virtual = (given.get(name, 1) for name in DEGREES)
    if given.get("zero_bubble"):
        schedule = "zero-bubble"
    else:
        schedule = "interleaved" if virtual > 1 else "1f1b" if pp > 1 else "none"
    return Layout(given["gpus"] // (tp * pp * cp), tp, pp, cp, ep, virtual, schedule)  # type: ignore[arg-type]


def _speed(given: Mapping[str, Any], shape: ModelShape, batch: StepBatch) -> float | None:
    """Tokens per second of one GPU."""
    if "teraflops" in given:
        causal = given.get("causal", True)
        return float(given["teraflops"] * 1e12 / shape.flops_per_token(batch.length, causal=causal))
    if "seconds" in given:
        return float(batch.tokens / given["seconds"] / given["gpus"])
    return given.get("speed")
