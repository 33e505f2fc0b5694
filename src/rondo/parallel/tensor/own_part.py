"""A rank's own part of a tensor that may be divided among ranks."""

from __future__ import annotations

from torch import Tensor


def local_of(x: Tensor) -> Tensor:
    """This rank's part; of a tensor that is not divided, all of it."""
    return x.to_local() if hasattr(x, "to_local") else x


def with_local(x: Tensor, local: Tensor) -> Tensor:
    """`x` with another memory for its part."""
    if not hasattr(x, "to_local"):
        return local
    from torch.distributed.tensor import DTensor

    assert isinstance(x, DTensor)
    return DTensor.from_local(
        local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )
