"""Choosing tokens: one a row, each with a random number of its own."""

import torch
from torch import Tensor

from rondo.ops.dispatch import Op
from rondo.ops.logprobs import row_logprobs

NO_TOKEN = -1


@Op
def choose_tokens(
    logits: Tensor, temperatures: Tensor, draws: Tensor, scales: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """logits [R, V] in fp32, temperatures [R], draws [R] in [0, 1) -> tokens [R] from the softmax of logits by
    temperature, or the likeliest where that is 0; NO_TOKEN where the logits are not finite. With `scales` [R] also the
    log-probabilities of the softmax of logits times those (of token 0 where there is none)."""
    hot = temperatures > 0
    probs = torch.softmax(logits / torch.where(hot, temperatures, 1.0)[:, None], dim=-1)
    tokens = torch.where(hot, draw(probs, draws), likeliest(logits))
    if scales is None:
        return tokens, None
    return tokens, row_logprobs(logits, tokens.clamp(min=0), scales[:, None])


def draw(probs: Tensor, draws: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: probs [R, V], draws [R] in [0, 1) -> tokens [R]."""
    cumulative = probs.cumsum(-1)
    mass = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, draws[:, None] * mass, right=True)
    return torch.where(mass.isfinite(), tokens.clamp_(max=probs.shape[-1] - 1), NO_TOKEN).squeeze(-1)


def likeliest(logits: Tensor) -> Tensor:
    best = logits.max(-1)
    return torch.where(best.values.isfinite(), best.indices, NO_TOKEN)
