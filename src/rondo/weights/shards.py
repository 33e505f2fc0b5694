"""Shards of a learner's weights under Hugging Face names, for every layout of its parameters, and its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rondo.base.errors import ConfigError, StorageError, Unavailable
from rondo.models.files.mapping import joined
from rondo.models.files.slots import Slot, TensorMapping
from rondo.weights.plan.boxes import Box, box_of

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """This rank's part of a tensor, in the layout of the Hugging Face tensor `name`.

    `shape` is the whole tensor's and `start` the index of the part's first element; both are left out for a whole
    tensor. Ranks may hold equal parts: each byte is written once. With a `dtype`, elements are converted while they are
    written, without a converted copy.
    """

    name: str
    tensor: Tensor
    shape: tuple[int, ...] | None = None
    start: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None

    @property
    def box(self) -> Box:
        return box_of(self.start or (0,) * self.tensor.dim(), self.tensor.shape)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        return self.shape if self.shape is not None else tuple(self.tensor.shape)


Shards = Callable[[], Iterable[Shard]]
"""Called at every push. The tensors may be made one by one, and are released once they are copied."""


def shard_of(name: str, tensor: Tensor, dtype: torch.dtype | None = None) -> Shard:
    """Shard of a `DTensor` (FSDP, tensor parallelism or both), or of a whole tensor."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return Shard(name, tensor, dtype=dtype)
    _, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Shard(name, tensor.to_local(), tuple(tensor.shape), tuple(start), dtype)


def shards_of(model: nn.Module, table: Iterable[Slot], prefix: str = "") -> Iterator[Shard]:
    """Shards of a model under Hugging Face names. `table` are the slots of the whole model; parameters that this rank
    lacks, such as those of another pipeline stage, are skipped."""
    named = model.named_parameters(remove_duplicate=False)
    return convert(table, {name.removeprefix(prefix): shard_of(name, each) for name, each in named})


def convert(table: Iterable[Slot], parameters: Mapping[str, Shard]) -> Iterator[Shard]:
    """Shards of own parameters, by name, as shards of Hugging Face tensors: views without copies."""
    for slot in table:
        if is_interleaved(slot):
            yield from _joined(slot, parameters)
            continue
        for piece in slot.pieces:
            own = parameters.get(piece.param)
            part = None if own is None else _part(slot, piece, own)
            if part is not None and part.tensor.numel():
                yield part


def _part(slot: Slot, piece: TensorMapping, own: Shard) -> Shard | None:
    tensor, start, shape = own.tensor, list(own.start or (0,) * own.tensor.dim()), list(own.whole_shape)
    if piece.at is not None:
        row = piece.at - start[0]
        if not 0 <= row < tensor.shape[0]:
            return None
        tensor, start, shape = tensor[row], start[1:], shape[1:]
    if piece.transposed:
        tensor = tensor.transpose(-1, -2)
        start[-2:], shape[-2:] = start[-2:][::-1], shape[-2:][::-1]
    if piece.into is None:
        return Shard(slot.name, tensor, tuple(shape), tuple(start), own.dtype)
    assert slot.shape is not None
    offset = [0] * len(slot.shape)
    for dim, each in enumerate(piece.into):
        if isinstance(each, slice):
            offset[dim] = each.start or 0
    first = tuple(a + b for a, b in zip(offset, start, strict=True))
    return Shard(slot.name, tensor, slot.shape, first, own.dtype)


def is_interleaved(slot: Slot) -> bool:
    """Whether a tensor has parts of several parameters in turn, which only whole parameters can fill."""
    regions = [each for piece in slot.pieces for each in piece.into or ()]
    return any(isinstance(each, slice) and each.step not in (None, 1) for each in regions)


def _joined(slot: Slot, parameters: Mapping[str, Shard]) -> Iterator[Shard]:
    """A tensor with interleaved parts, from whole parameters."""
    found = {piece.param: parameters.get(piece.param) for piece in slot.pieces}
    own = {
        name: each.tensor for name, each in found.items() if each and each.shape in (None, each.tensor.shape)
    }
    if own.keys() == found.keys():
        first = found[slot.pieces[0].param]
        yield Shard(slot.name, joined(slot, own), dtype=None if first is None else first.dtype)
    elif any(found.values()):
        raise ConfigError(
            f"{slot.name} interleaves parameters that are split among ranks: export the model, and push the folder "
            "with `rondo weights push`.",
            param="layout",
        )


class LearnerRanks:
    """The ranks of a process group; one rank if there is none. Every method is called by every rank."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self._size = dist.get_world_size(group) if group is not None else 1

    def from_all(self, mine: Any) -> list[Any]:
        """The objects of all ranks. A rank that has ended, or is later than the group's timeout, is an error."""
        if self._group is None:
            return [mine]
        found: list[Any] = [None] * self._size
        try:
            dist.all_gather_object(found, mine, group=self._group)
        except RuntimeError as error:
            raise Unavailable(
                f"another rank of the learner ended or did not answer in time: restart the learner's ranks ({error}).",
                code="rank_lost",
            ) from error
        return found

    def by_first(self, work: Callable[[], T]) -> T:
        """Result of the work of rank 0; an error of it on every rank, which is a `StorageError` on all or on none."""
        if self._group is None:
            return work()
        found: tuple[Any, str, bool] = None, "", False
        try:
            if self.rank == 0:
                found = work(), "", False
        except Exception as error:
            self.from_all((None, f"{type(error).__name__}: {error}", isinstance(error, StorageError)))
            raise
        result, message, is_full = self.from_all(found)[0]
        if message:
            kind = StorageError if is_full else Unavailable
            raise kind(f"rank 0 of the learner failed: {message}", code="rank_failed")
        return cast(T, result)
