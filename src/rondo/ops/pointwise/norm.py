"""Root-mean-square normalisation."""

import torch.nn.functional as F
from torch import Tensor

from rondo.ops.dispatch import Op


@Op
def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x / rms(x) * (weight + offset) over the last axis; statistics are in fp32 for every dtype of x.

    Gemma's weights are centered on zero, with 1 added (`offset`); every other family has offset 0.
    """
    if offset:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float() + offset, eps).to(x.dtype)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


@Op
def add_rms_norm(
    x: Tensor, added: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """x + added, and the norm of the sum."""
    total = x + added
    return total, rms_norm(total, weight, eps, offset)
