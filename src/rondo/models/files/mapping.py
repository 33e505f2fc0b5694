"""The mapping between our parameters and Hugging Face's tensors, as data for both directions.

A `Slot` is one tensor of a Hugging Face checkpoint; its `TensorMapping`s assign each region of it to a parameter or a
part of one. Loading, saving, weight updates of engines, and adapters all use it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rondo.models.decoder import Decoder

Region = tuple[slice | EllipsisType, ...]


@dataclass(frozen=True)
class TensorMapping:
    """A region of a Hugging Face tensor: `into` is the region, `param[at]` the parameter that it maps to."""

    param: str
    at: int | None = None
    into: Region | None = None
    transposed: bool = False

    def ours(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The parameter, as a view in the layout of the Hugging Face tensor."""
        view = parameters[self.param]
        if self.at is not None:
            view = view[self.at]
        return view.transpose(-1, -2) if self.transposed else view

    def theirs(self, tensor: Tensor) -> Tensor:
        return tensor if self.into is None else tensor[self.into]


@dataclass(frozen=True)
class Slot:
    """One Hugging Face tensor. `shape` is set if it consists of several pieces."""

    name: str
    pieces: tuple[TensorMapping, ...]
    shape: tuple[int, ...] | None = None

    def shape_for(self, parameters: Mapping[str, Tensor]) -> tuple[int, ...]:
        return self.shape if self.shape is not None else tuple(self.pieces[0].ours(parameters).shape)


def one(name: str, param: str, at: int | None = None, *, transposed: bool = False) -> Slot:
    """A Hugging Face tensor that maps to a whole parameter, or to one expert of a stacked one."""
    return Slot(name, (TensorMapping(param, at, None, transposed),))


def stacked_rows(name: str, params: Iterable[tuple[str, int]], columns: int | None) -> Slot:
    """A Hugging Face tensor that stacks the rows of several of our parameters: (parameter, rows)."""
    pieces, start = [], 0
    for param, rows in params:
        pieces.append(TensorMapping(param, None, (slice(start, start + rows),)))
        start += rows
    return Slot(name, tuple(pieces), (start,) if columns is None else (start, columns))


def slots(model: "Decoder") -> list[Slot]:
    return model.slots()


@dataclass(frozen=True)
class Outgoing:
    """A Hugging Face tensor created on demand: `make` returns a view where the layout allows, else a copy."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def outgoing(model: "Decoder") -> list[Outgoing]:
    """The tensors of a checkpoint of this model."""
    model.check_whole()
    parameters = {
        name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return plain_outgoing(slots(model), parameters)


def plain_outgoing(table: Iterable[Slot], parameters: dict[str, Tensor]) -> list[Outgoing]:
    return [
        Outgoing(
            slot.name,
            slot.shape_for(parameters),
            parameters[slot.pieces[0].param].dtype,
            partial(joined, slot, parameters),
        )
        for slot in table
    ]


def to_hf(model: "Decoder") -> Iterator[tuple[str, Tensor]]:
    return ((tensor.name, tensor.make()) for tensor in outgoing(model))


def joined(slot: Slot, parameters: Mapping[str, Tensor]) -> Tensor:
    """The Hugging Face tensor of a slot: a view of the parameter where the layout allows, else a copy."""
    first = slot.pieces[0].ours(parameters)
    if len(slot.pieces) == 1 and slot.pieces[0].into is None:
        return first
    whole = torch.empty(slot.shape_for(parameters), dtype=first.dtype, device=first.device)
    for piece in slot.pieces:
        piece.theirs(whole).copy_(piece.ours(parameters))
    return whole
