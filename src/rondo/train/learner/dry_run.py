"""Dry run of a plan at its true size, on fake ranks: the part of the model of each kind of rank is built and passed
through forward and backward as shapes, and its memory is computed, without allocating it.

Ranks with equal layers and equally large parts of them are one kind: it is built once. The routing of tokens to experts
is unknown without data, so only the shapes of the experts' weights are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from rondo.data.batching.packing import PackedRow, flat_row
from rondo.models import ModelConfig, build
from rondo.models.parts import Experts
from rondo.ops.dispatch import use_reference
from rondo.parallel.apply import part
from rondo.parallel.config import LayoutConfig, MemoryConfig
from rondo.parallel.context.context import Context
from rondo.parallel.data import shard
from rondo.parallel.layout.cut import costs, cut, pieces_of, stage_of
from rondo.parallel.layout.degrees import degrees
from rondo.parallel.layout.split import split
from rondo.parallel.pipeline.stage import Stage
from rondo.parallel.ranks.mesh import Mesh
from rondo.parallel.ranks.world import World
from rondo.parallel.tensor.own_part import local_of
from rondo.plan import job
from rondo.plan.choice.built import Kind
from rondo.plan.cost.estimate import Estimate
from rondo.plan.cost.memory import RankParameters, of_stage, stage_parameters, states
from rondo.train.learner.passes import inputs_of

dist: Any = torch.distributed
META = torch.device("meta")


def dry_run(plan: Estimate, model: ModelConfig) -> list[Kind]:
    layout = layout_of(plan)
    wanted = degrees(layout, plan.layout.ranks, model)
    found = []
    for (stage, tp_rank), alike in _kinds(layout, model).items():
        # Ranks are in the order pp, dp, cp, tp.
        rank = stage * (wanted.ranks // wanted.pp) + tp_rank
        with _fake_rank(rank, wanted.ranks):
            mesh = Mesh(wanted, World(rank, wanted.ranks), torch.device("cpu"))
            ranks = alike * wanted.ranks // (wanted.pp * wanted.tp)
            found.append(_built(plan, model, mesh, stage, tp_rank, ranks))
    return found


def layout_of(plan: Estimate) -> LayoutConfig:
    """Layout of the plan as a job's config."""
    return LayoutConfig(**job.layout(plan))


def _kinds(layout: LayoutConfig, model: ModelConfig) -> dict[tuple[int, int], int]:
    """A (stage, tp rank) of each kind, and the number of such pairs of that kind."""
    runs = cut(costs(model), pieces_of(layout))
    stages = [_stage(layout, model, runs, stage) for stage in range(layout.pp)]
    parts = [split(model, rank, layout.tp) for rank in range(layout.tp)]
    names = {name for name, _ in build(model).named_parameters()}
    widths = [(tuple(len(each) for each in part.cuts.values()), part.absent & names) for part in parts]
    found: dict[tuple[int, int], int] = {}
    for stage in stages:
        for width in widths:
            like = (stages.index(stage), widths.index(width))
            found[like] = found.get(like, 0) + 1
    return found


def _stage(layout: LayoutConfig, model: ModelConfig, runs: list[range], stage: int) -> tuple[object, ...]:
    """Description of the stage's pieces, equal for equal stages."""
    own = [i for i in range(len(runs)) if stage_of(layout, i) == stage]
    return tuple((i == 0, i == len(runs) - 1, tuple(model.layers[j] for j in runs[i])) for i in own)


def _built(plan: Estimate, model: ModelConfig, mesh: Mesh, stage: int, tp_rank: int, ranks: int) -> Kind:
    decoder = build(model).to(torch.bfloat16)
    pieces = part(decoder, mesh, MemoryConfig())
    row = _row(plan.batch.length * plan.policy.microbatch, plan.batch.length)
    for piece in pieces:
        _pass(piece, row, mesh)
    dense, experts = _parameters(pieces)
    for piece in pieces:
        shard(piece, mesh)
    planned = stage_parameters(plan.shape, plan.layout, stage)
    estimate = of_stage(plan.shape, plan.layout, plan.policy, plan.batch, stage)
    built = sum(states(RankParameters(dense, experts), plan.layout, plan.policy))
    return Kind(
        stage=stage,
        tp_rank=tp_rank,
        ranks=ranks,
        layers=sum(
            isinstance(each, torch.nn.Module) and any(True for _ in each.parameters())
            for each in decoder.layers
        ),
        dense=dense,
        experts=experts,
        divided=sum(_parameters(pieces)),
        planned=planned.all,
        memory=estimate.total - estimate.states + built,
        planned_memory=estimate.total,
    )


def _pass(piece: Stage, row: PackedRow, mesh: Mesh) -> None:
    """Forward and backward pass; raises if shapes do not match."""
    context = Context(mesh.cp, mesh.degrees.config.cp_method)
    hidden = piece.decoder.config.hidden_size
    with use_reference(), _experts_alone(piece):
        tokens, inputs = inputs_of(row, 1.0, piece.decoder.config.vocab_size, META, context)
        x = tokens
        if not piece.first:
            x = torch.empty(len(tokens) // mesh.degrees.tp, hidden, dtype=torch.bfloat16, device=META)
            x.requires_grad_()
        out: Tensor = piece(x, inputs)
        out.sum().backward()  # type: ignore[no-untyped-call]
    expected = (len(row.where),) if piece.last else (len(tokens) // mesh.degrees.tp, hidden)
    assert out.shape == expected, (out.shape, expected)


def _row(tokens: int, length: int) -> PackedRow:
    ids = np.zeros(length + 1, np.int64)
    return flat_row([ids] * (tokens // length), [np.ones(length + 1, np.float32)] * (tokens // length))


def _parameters(pieces: list[Stage]) -> tuple[int, int]:
    """Number of this rank's parameters: without experts, and of experts."""
    own = {
        id(p)
        for piece in pieces
        for each in piece.modules()
        if isinstance(each, Experts)
        for p in each.parameters()
    }
    seen = {id(p): p for piece in pieces for p in piece.parameters()}
    sizes = {key: _size(p) for key, p in seen.items()}
    experts = sum(size for key, size in sizes.items() if key in own)
    return sum(sizes.values()) - experts, experts


def _size(parameter: Tensor) -> int:
    return local_of(parameter).numel()


@contextmanager
def _experts_alone(piece: Stage) -> Iterator[None]:
    """Replaces routing, which needs data: every expert's weights are applied to one row."""
    modules = [each for each in piece.modules() if isinstance(each, Experts)]
    for module in modules:
        module.forward = _meets(module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _meets(experts: Experts) -> Any:
    def forward(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        gate, up, down = (local_of(each) for each in (experts.gate, experts.up, experts.down))
        wide = torch.einsum("th,eih->ti", x, gate) * torch.einsum("th,eih->ti", x, up)
        return torch.einsum("ti,ehi->th", wide, down) * weights.sum().to(x.dtype)

    return forward


@contextmanager
def _fake_rank(rank: int, ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
