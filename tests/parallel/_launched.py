"""What ranks do in the tests of how they are launched."""

import os
import time

import torch
import torch.distributed as dist

from rondo.parallel.collectives import all_to_all, copy_to, gather_rows, sum_over


def of_default_group() -> dict[str, list[float]]:
    group = dist.group.WORLD
    assert group is not None
    x = torch.full((2,), 1.0 + group.rank(), requires_grad=True)
    y = sum_over(all_to_all(gather_rows(copy_to(x, group), group), group, [2, 2], [2, 2]), group)
    y.sum().backward()
    assert x.grad is not None
    return {"found": y.tolist(), "gradient": x.grad.tolist()}


def fails(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        raise RuntimeError("this rank is out of luck")
    dist.barrier()


def sleeps() -> None:
    time.sleep(600)
