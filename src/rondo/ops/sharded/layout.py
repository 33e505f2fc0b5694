"""Layout of an operation over a mesh of ranks, and its execution.

Tensors are moved by `redistribute` only, and converted by `to_local` and `from_local`, as documented by torch for
DTensors. A plain tensor among them counts as replicated; it must not require a gradient, because the reduction of its
gradients over ranks would be undefined.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

Dims = Sequence[int | None]
"""The sharded dimension of each tensor along one axis of the mesh; None if it is replicated."""


@dataclass(frozen=True)
class Way:
    """Layout of an operation along one axis of the mesh: the sharding of inputs and output. The gradients of the
    tensors `summed` are partial sums over the ranks; with `adds` the output is a partial sum."""

    inputs: Dims
    output: int | None = None
    summed: Sequence[int] = ()
    adds: bool = False


def shards_among(*given: object) -> bool:
    """Whether any argument is a DTensor. False if the DTensor module was never imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(each, module.DTensor) for each in given)


def refuse_shards(what: str, *given: object) -> None:
    """Raises for DTensors, in operations without a rule for shards."""
    if shards_among(*given):
        raise ValueError(
            f"{what} takes no DTensors: give each rank a part of its own as plain tensors (to_local()), or all of them "
            "(full_tensor())"
        )


@dataclass(frozen=True)
class ShardLayout:
    """Placement of an operation's tensors. All DTensors among them are of one mesh."""

    mesh: DeviceMesh
    tensors: tuple[DTensor, ...]

    @classmethod
    def of(cls, *given: Tensor) -> ShardLayout:
        from torch.distributed.tensor import DTensor, Replicate

        mesh = next(each.device_mesh for each in given if isinstance(each, DTensor))
        tensors = []
        for each in given:
            if isinstance(each, DTensor):
                if each.device_mesh != mesh:
                    raise ValueError(f"DTensors of two meshes meet: {mesh} and {each.device_mesh}")
                tensors.append(each)
                continue
            if torch.is_grad_enabled() and each.requires_grad:
                raise ValueError(
                    f"a plain tensor {tuple(each.shape)} that takes a gradient meets DTensors: make it one with "
                    "DTensor.from_local or distribute_tensor, which say how its gradient adds up"
                )
            tensors.append(DTensor.from_local(each, mesh, [Replicate()] * mesh.ndim, run_check=False))
        return cls(mesh, tuple(tensors))

    def cuts(self) -> list[list[int | None]]:
        """For each axis of the mesh, the dimension in which each tensor is sharded. Tensors with other placements, such
        as partial sums, count as replicated, and are converted first."""
        from torch.distributed.tensor import Shard

        def cut(placement: Placement) -> int | None:
            return placement.dim if type(placement) is Shard else None

        return [[cut(x.placements[axis]) for x in self.tensors] for axis in range(self.mesh.ndim)]

    def rank(self, axes: Sequence[int]) -> int:
        """This rank's number among the ranks along these axes, in the order in which the axes split a dimension."""
        own = self.mesh.get_coordinate()
        assert own is not None
        number = 0
        for axis in axes:
            number = number * self.mesh.size(axis) + own[axis]
        return number

    def run(self, op: Callable[..., Tensor], ways: Sequence[Way], shape: Sequence[int]) -> Any:
        """Runs `op` on this rank's shards and returns its result as a shard of a DTensor of this shape."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        def placed(dim: int | None) -> Placement:
            return Replicate() if dim is None else Shard(dim)

        local = []
        for i, tensor in enumerate(self.tensors):
            wanted = [placed(way.inputs[i]) for way in ways]
            graded = [
                Partial() if i in way.summed else place for way, place in zip(ways, wanted, strict=True)
            ]
            # Needed even if the placement is as wanted: in the backward pass it gives the gradient the
            # placement of its tensor.
            local.append(tensor.redistribute(placements=wanted).to_local(grad_placements=graded))
        outputs = [Partial() if way.adds else placed(way.output) for way in ways]
        whole = torch.Size(shape)
        strides = tuple(accumulate((*whole[:0:-1],), lambda a, b: a * max(b, 1), initial=1))[::-1]
        # Shards may be uneven, so the whole shape is passed.
        return DTensor.from_local(
            op(*local), self.mesh, outputs, run_check=False, shape=whole, stride=strides
        )
