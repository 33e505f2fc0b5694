"""Drawing tokens: one a row, each with a random number of its own."""

import torch
from torch import Tensor

from rondo.ops.dispatch import Op

NO_TOKEN = -1


@Op
def draw_tokens(logits: Tensor, temperatures: Tensor, draws: Tensor) -> Tensor:
    """logits [R, V] in fp32, temperatures [R] above 0, draws [R] in [0, 1) -> tokens [R] from the softmax of logits by
    temperature; NO_TOKEN where the logits are not finite."""
    return draw(torch.softmax(logits / temperatures[:, None], dim=-1), draws)


def draw(probs: Tensor, draws: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: probs [R, V], draws [R] in [0, 1) -> tokens [R]."""
    cumulative = probs.cumsum(-1)
    mass = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, draws[:, None] * mass, right=True)
    return torch.where(mass.isfinite(), tokens.clamp_(max=probs.shape[-1] - 1), NO_TOKEN).squeeze(-1)
