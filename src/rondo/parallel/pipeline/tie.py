"""A tied embedding of a pipeline: both end stages have a copy, and the gradients of both are summed.

So the copies stay equal, bit for bit. If both ends are on one rank, the head's copy is invisible to the optimizer: it
is copied from the embedding before passes, and its gradient is added to the embedding's after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from rondo.models.decoder import Decoder, MissingLayer
from rondo.parallel.layout.cut import pieces_of, stage_of
from rondo.parallel.pipeline.pieces import shallow
from rondo.parallel.pipeline.stage import Stage
from rondo.parallel.ranks.mesh import Mesh
from rondo.parallel.tensor.own_part import local_of

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""


def part_ends(pieces: Sequence[Stage]) -> None:
    """If one rank has both ends, copies the tied matrix for the last piece: pieces are sharded one by one."""
    first, last = pieces[0], pieces[-1]
    if first is not last and first.first and last.last and last.decoder.config.tied:
        head = shallow(last.decoder.head)
        out = shallow(head.out)
        weight = _weight(out)
        out._parameters["weight"] = nn.Parameter(weight.detach().clone(), weight.requires_grad)
        head._modules["out"] = out
        last.decoder._modules["head"] = head
        last.decoder._modules["embed"] = MissingLayer()


class TiedEmbeddingSync:
    """Synchronization of a tied embedding on a rank that has one end or both."""

    def __init__(self, model: Decoder, mesh: Mesh, pieces: Sequence[Stage], ends: tuple[int, int]) -> None:
        """`ends` are the first and the last stage."""
        first, last = ends
        self._embed = model.embed
        self._group = mesh.pp
        self._other = last if mesh.pp_rank == first else first
        self._copy = pieces[-1].decoder.head.out if first == last else None
        self._second = mesh.pp_rank != first

    @classmethod
    def of(cls, model: Decoder, mesh: Mesh, pieces: Sequence[Stage]) -> TiedEmbeddingSync | None:
        layout = mesh.degrees.config
        ends = (stage_of(layout, 0), stage_of(layout, pieces_of(layout) - 1))
        if not model.config.tied or mesh.pp_rank not in ends:
            return None
        if ends[0] == ends[1]:
            model.tie()  # Sharding has replaced the embedding's parameter.
        return cls(model, mesh, pieces, ends) if _weight(model.embed).requires_grad else None

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Weights of this rank that the other end counts in the gradient norm."""
        return [_weight(self._embed)] if self._second else []

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Context of forward and backward passes, which start without gradients."""
        if self._copy is not None:
            with torch.no_grad():
                local_of(_weight(self._copy)).copy_(local_of(_weight(self._embed)))
        yield
        gradient = _gradient(self._embed)
        local_of(gradient).add_(self._learned_there(local_of(gradient)))

    def _learned_there(self, here: Tensor) -> Tensor:
        if self._copy is not None:
            gradient, _weight(self._copy).grad = _gradient(self._copy), None
            return local_of(gradient)
        there = torch.empty_like(here)
        both = [(dist.isend, here), (dist.irecv, there)]
        transfers = [dist.P2POp(op, x, group_peer=self._other, group=self._group) for op, x in both]
        for transfer in dist.batch_isend_irecv(transfers):
            transfer.wait()
        return there


def _weight(module: nn.Module) -> nn.Parameter:
    """The weight as stored, even if the module reads a local part of it."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def _gradient(module: nn.Module) -> Tensor:
    gradient = _weight(module).grad
    assert gradient is not None
    return gradient
