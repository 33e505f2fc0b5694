"""A rank's own part of a tensor that may be sharded."""

from __future__ import annotations

from torch import Tensor


def local_of(x: Tensor) -> Tensor:
    """This rank's part, or the whole of a tensor that is not sharded."""
    return x.to_local() if hasattr(x, "to_local") else x


def with_local(x: Tensor, local: Tensor) -> Tensor:
    """`x` with `local` as the storage of this rank's part."""
    if not hasattr(x, "to_local"):
        return local
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return DTensor.from_local(
        local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )
