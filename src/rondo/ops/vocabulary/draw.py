"""Sampling of tokens: one a row, each with its own random number."""

import numpy as np
import torch
from torch import Tensor

from rondo.ops.dispatch import Op
from rondo.ops.vocabulary.logprobs import row_logprobs

NO_TOKEN = -1
WORD = 32
"""Tokens in one number of a mask, the first in its lowest bit."""


@Op
def choose_tokens(
    logits: Tensor,
    temperatures: Tensor,
    draws: Tensor,
    scales: Tensor | None = None,
    masks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """logits [R, V] in fp32, temperatures [R], draws [R] in [0, 1) -> tokens [R], sampled from the softmax of logits
    over temperature, or the argmax for temperature 0; NO_TOKEN if the logits are not finite. `masks` [R, words]
    restrict the tokens. With `scales` [R] also the log-probabilities under the softmax of all logits times the scale
    (of token 0 for NO_TOKEN)."""
    hot = temperatures > 0
    left = logits if masks is None else masked(logits, masks)
    probs = torch.softmax(left / torch.where(hot, temperatures, 1.0)[:, None], dim=-1)
    tokens = torch.where(hot, draw(probs, draws), likeliest(left))
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


def masked(logits: Tensor, masks: Tensor) -> Tensor:
    """logits [R, V], masks [R, words] in int32, one bit a token -> logits with -inf for tokens without a set bit."""
    return logits.masked_fill(~_bits(masks, logits.shape[-1]), -torch.inf)


def _bits(masks: Tensor, vocab: int) -> Tensor:
    """[R, words] -> bools [R, V]."""
    if masks.device.type == "cpu":
        octets = masks.contiguous().view(torch.uint8).numpy()
        return torch.from_numpy(np.unpackbits(octets, axis=1, count=vocab, bitorder="little").view(np.bool_))
    places = torch.arange(WORD, dtype=torch.int32, device=masks.device)
    return ((masks[:, :, None] >> places) & 1).bool().flatten(1)[:, :vocab]
