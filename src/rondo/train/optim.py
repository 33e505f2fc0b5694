"""AdamW over a decoder's parameters, and clipping."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rondo.train.config import OptimConfig


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Norms and biases are vectors, and are not decayed. Parameters keep the model's order in each group."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=all(p.dtype.is_floating_point and p.device.type in ("cpu", "cuda") for p in trained),
    )


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Scales the gradients down to a norm of at most `limit` (0: only measures); returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    norm = torch.nn.utils.get_total_norm(gradients)
    if limit > 0 and norm > limit:
        torch._foreach_mul_(gradients, float(limit / (norm + 1e-6)))
    return float(norm)
