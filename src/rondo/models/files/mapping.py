"""The mapping between a model's parameters and Hugging Face's tensors.

Loading, saving, weight updates of engines, and adapters all use it. `slots.py` has its data types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rondo.models.decoder import Decoder
from rondo.models.files.slots import Slot


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


def outgoing(model: Decoder) -> list[Outgoing]:
    """The tensors of a checkpoint of this model."""
    model.check_whole()
    parameters = {
        name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return plain_outgoing(model.slots(), parameters)


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


def to_hf(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face names and tensors: views of the parameters where the layout allows, else copies."""
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
