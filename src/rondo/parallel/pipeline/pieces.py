"""A pipeline rank's pieces of a decoder, under their original names; all other layers are dropped."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import nn

from rondo.base.errors import ConfigError
from rondo.models.decoder import Decoder, MissingLayer
from rondo.parallel.layout.cut import costs, cut, pieces_of, stage_of
from rondo.parallel.pipeline.stage import Stage
from rondo.parallel.ranks.mesh import Mesh

M = TypeVar("M", bound=nn.Module)


def keep_own(model: Decoder, mesh: Mesh) -> None:
    """Drops the layers of other stages from the model, in place."""
    runs = _runs(model, mesh)
    if len(runs) > 1:
        check_learning(model, runs)
    _keep(model, {i: run for i, run in enumerate(runs) if _stage(i, mesh) == mesh.pp_rank}, len(runs))


def check_learning(model: Decoder, runs: Sequence[range]) -> None:
    """Raises if a piece has no trainable parameter: gradients pass through every piece."""
    for run in runs:
        if not any(p.requires_grad for i in run for p in model.layers[i].parameters()):
            raise ConfigError(
                f"train.layout.pp: layers {run.start} to {run.stop - 1} are a piece of a pipeline, and nothing in them "
                "learns: take fewer stages, or an adapter with targets in every layer.",
                param="train.layout.pp",
            )


def own_pieces(model: Decoder, mesh: Mesh) -> list[Stage]:
    """This rank's pieces in model order. They share the model's modules."""
    runs = _runs(model, mesh)
    pieces = []
    for i, run in enumerate(runs):
        if _stage(i, mesh) == mesh.pp_rank:
            decoder = shallow(model)
            _keep(decoder, {i: run}, len(runs))
            pieces.append(Stage(decoder, i, len(runs)))
    return pieces


def _runs(model: Decoder, mesh: Mesh) -> list[range]:
    return cut(costs(model.config), pieces_of(mesh.degrees.config))


def _stage(piece: int, mesh: Mesh) -> int:
    return stage_of(mesh.degrees.config, piece)


def _keep(decoder: Decoder, own: Mapping[int, range], pieces: int) -> None:
    """Drops modules outside of `own`. A tied embedding is on both end stages, on the last one as the head's matrix; a
    checkpoint has it under one name.
    """
    layers = {layer for run in own.values() for layer in run}
    first, last = 0 in own, pieces - 1 in own
    decoder.layers = nn.ModuleList(
        layer if i in layers else MissingLayer() for i, layer in enumerate(decoder.layers)
    )
    if not first and not (last and decoder.config.tied):
        decoder._modules["embed"] = MissingLayer()
    if not last:
        decoder._modules["head"] = MissingLayer()


def shallow(module: M) -> M:
    """Shallow copy of a module, with the same submodules and parameters."""
    other = copy.copy(module)
    other.__dict__["_modules"] = dict(module._modules)
    other.__dict__["_parameters"] = dict(module._parameters)
    return other
