"""Correspondence of our parameters and Hugging Face's tensors, as data for both directions.

A `Slot` is one tensor of a Hugging Face checkpoint; its `TensorMapping`s assign each region of it to a parameter or a
part of one. Each model family lists its slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType

from torch import Tensor

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
