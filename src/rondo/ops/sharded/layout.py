"""How an operation is laid out over a mesh of ranks, and running it so.

Tensors move by `redistribute` alone, and enter and leave a rank by `to_local` and `from_local`: what torch documents
of DTensors. A plain tensor among them counts as one that every rank has; it may take no gradient, of which nobody could
say how the ranks' parts make a whole.
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
"""Of several tensors, along one axis of the mesh: the dimension that is cut there, None where it is whole."""


@dataclass(frozen=True)
class Way:
    """How an operation runs along one axis of the mesh: how its tensors and its result are cut. `summed` are the
    tensors whose gradients are sums over the ranks; `adds` says that the result is one."""

    inputs: Dims
    output: int | None = None
    summed: Sequence[int] = ()
    adds: bool = False


def shards_among(*given: object) -> bool:
    """Whether any of them is a DTensor. Where nobody has imported these there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(each, module.DTensor) for each in given)


def refuse_shards(what: str, *given: object) -> None:
    """For what has no rule on shards."""
    if shards_among(*given):
        raise ValueError(
            f"{what} takes no DTensors: give each rank a part of its own as plain tensors (to_local()), or all of them "
            "(full_tensor())"
        )


@dataclass(frozen=True)
class ShardLayout:
    """Where an operation's tensors lie. All DTensors among them are of one mesh."""

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
        """For each axis of the mesh, the dimensions in which the tensors are cut. One that is cut in a way of its own,
        or that is a sum over the ranks, counts as whole: it is made so first."""
        from torch.distributed.tensor import Shard

        def cut(placement: Placement) -> int | None:
            return placement.dim if type(placement) is Shard else None

        return [[cut(x.placements[axis]) for x in self.tensors] for axis in range(self.mesh.ndim)]

    def rank(self, axes: Sequence[int]) -> int:
        """This rank's number among those along these axes, in the order in which they cut a dimension."""
        own = self.mesh.get_coordinate()
        assert own is not None
        number = 0
        for axis in axes:
            number = number * self.mesh.size(axis) + own[axis]
        return number

    def run(self, op: Callable[..., Tensor], ways: Sequence[Way], shape: Sequence[int]) -> Any:
        """`op` of this rank's parts, as a part of a result of this shape."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        def placed(dim: int | None) -> Placement:
            return Replicate() if dim is None else Shard(dim)

        local = []
        for i, tensor in enumerate(self.tensors):
            wanted = [placed(way.inputs[i]) for way in ways]
            graded = [
                Partial() if i in way.summed else place for way, place in zip(ways, wanted, strict=True)
            ]
            # Even where it is as wanted: on the way back this is what makes a gradient lie as its tensor does.
            local.append(tensor.redistribute(placements=wanted).to_local(grad_placements=graded))
        outputs = [Partial() if way.adds else placed(way.output) for way in ways]
        whole = torch.Size(shape)
        strides = tuple(accumulate((*whole[:0:-1],), lambda a, b: a * max(b, 1), initial=1))[::-1]
        # Parts need not be equally large: so the shape of the whole is said.
        return DTensor.from_local(
            op(*local), self.mesh, outputs, run_check=False, shape=whole, stride=strides
        )
