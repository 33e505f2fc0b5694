"""Whole parameters of a model that is divided over ranks, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rondo.models.adapters.attached import adapter_of
from rondo.models.decoder import Decoder
from rondo.models.files.checkpoint import KEPT_AS_STORED

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh


@torch.no_grad()
def gathered(model: Decoder, mesh: Mesh | None, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Names and whole parameters that training changes, in `dtype`, on all ranks, which must all iterate to the end.
    With an adapter these are the adapter's. A pipeline stage broadcasts its own.
    """
    own = {name: p.detach() for name, p in _changing(model)}
    if mesh is None or mesh.degrees.pp == 1:
        yield from ((name, _whole(p, _type(name, dtype))) for name, p in own.items())
        return
    from rondo.parallel.ranks.mesh import dist

    sent = set[str]()
    for stage, shapes in enumerate(mesh.said_by_stages({name: tuple(p.shape) for name, p in own.items()})):
        source = dist.get_global_rank(mesh.pp, stage)
        for name, shape in shapes.items():
            if name in sent:  # a tied embedding is on both end stages
                continue
            sent.add(name)
            kind = _type(name, dtype)
            if stage == mesh.pp_rank:
                whole = _whole(own[name], kind).contiguous()
            else:
                whole = torch.empty(shape, dtype=kind, device=mesh.device)
            dist.broadcast(whole, source, group=mesh.pp)
            yield name, whole


def _changing(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Trained parameters, and the routers' corrections, which the learner balances without gradients."""
    frozen = adapter_of(model) is not None
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or (not frozen and name.endswith(KEPT_AS_STORED)):
            yield name, parameter


def _type(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.endswith(KEPT_AS_STORED) else dtype


def _whole(own: Tensor, dtype: torch.dtype) -> Tensor:
    own = own.to(dtype)
    return own.full_tensor() if hasattr(own, "full_tensor") else own
