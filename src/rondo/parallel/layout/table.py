"""Regions of a checkpoint for a rank's parameters: the model's own mapping, with each piece narrowed to the rank's
part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import EllipsisType

from torch import Tensor

from rondo.models.files.slots import Region, Slot, TensorMapping
from rondo.parallel.layout.split import Split, TensorSlice


def narrowed(table: list[Slot], whole: Mapping[str, Tensor], split: Split) -> list[Slot]:
    """The same stored tensors, narrowed to the rank's own regions, if any."""
    return [_narrow_slot(slot, slot.shape_for(whole), split) for slot in table]


def _narrow_slot(slot: Slot, shape: tuple[int, ...], split: Split) -> Slot:
    pieces = [piece for piece in slot.pieces if piece.param not in split.absent]
    own = [
        _narrow(piece, shape, split.cuts[piece.param]) if piece.param in split.cuts else piece
        for piece in pieces
    ]
    return Slot(slot.name, tuple(own), shape)


def _narrow(piece: TensorMapping, shape: tuple[int, ...], cut: TensorSlice) -> TensorMapping:
    """Narrows a piece. `cut` is along an axis of the parameter, whereas the region lies in the stored tensor, which may
    be transposed or contain all experts.
    """
    dim = cut.dim if piece.at is None else cut.dim - 1
    if piece.transposed:
        last = len(shape) - 1
        dim = {last: last - 1, last - 1: last}.get(dim, dim)
    places = _places(piece.into or (...,), shape)
    places[dim] = places[dim][cut.start : cut.stop]
    return replace(piece, into=tuple(slice(each.start, each.stop, each.step) for each in places))


def _places(region: Region, shape: tuple[int, ...]) -> list[range]:
    """Indices of the region along each axis of a tensor."""
    missing = len(shape) - sum(not isinstance(each, EllipsisType) for each in region)
    slices: list[slice] = []
    for each in region:
        slices += [slice(None)] * missing if isinstance(each, EllipsisType) else [each]
    slices += [slice(None)] * (len(shape) - len(slices))
    return [range(size)[each] for size, each in zip(shape, slices, strict=True)]
