"""What ranks do in the tests of how they are launched."""

from typing import Any

import torch
import torch.distributed as dist

from rondo.parallel.collectives import all_to_all, copy_to, gather_rows, sum_over
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.degrees import Degrees
from rondo.parallel.ranks.mesh import Mesh
from rondo.parallel.ranks.world import read_world


def of_default_group() -> dict[str, list[float]]:
    group = dist.group.WORLD
    assert group is not None
    x = torch.full((2,), 1.0 + group.rank(), requires_grad=True)
    y = sum_over(all_to_all(gather_rows(copy_to(x, group), group), group, [2, 2], [2, 2]), group)
    y.sum().backward()
    assert x.grad is not None
    return {"found": y.tolist(), "gradient": x.grad.tolist(), "timeouts": of_a_mesh(7)}


def of_a_mesh(timeout: float) -> list[float]:
    """How long each of its groups waits."""
    config = LayoutConfig(timeout=timeout)
    mesh = Mesh(Degrees(config, ranks=2, dp=2, replicate=1, shard=2), read_world(), torch.device("cpu"))
    groups: list[Any] = [*mesh.states.get_all_groups(), mesh.dp, mesh.tp, mesh.cp, mesh.pp, mesh.stage]
    return [group._get_backend(mesh.device).options._timeout.total_seconds() for group in groups]
