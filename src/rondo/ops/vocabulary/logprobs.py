"""The log-probability of each next token, by the same function in sampler and learner."""

from typing import Any

import torch
from torch import Tensor

from rondo.ops.dispatch import Op

CHUNK_ELEMENTS = 1 << 22
"""Elements in a block of rows, so that fp32 scratch is a few times 16 MiB for any input."""

LEAST = -1000.0
"""Lower bound of a logarithm, in place of -inf; its exponential is 0."""


def token_logprobs(
    logits: Tensor, tokens: Tensor, temperature: float | Tensor = 1.0, entropy: bool = False
) -> Tensor:
    """log_softmax(logits / temperature)[tokens], fp32 [T], from logits [T, V] of any float dtype and tokens [T].

    `temperature` is a number or [T]; 0 (greedy) counts as 1. Differentiable in `logits`; neither pass allocates a
    second fp32 copy of them. With `entropy` the result is [T, 2]: the same log-probabilities, and each row's entropy in
    nats.
    """
    return _token_logprobs(logits, tokens, inverse_temperature(temperature, logits), entropy)


@torch.no_grad()
def top1_hits(logits: Tensor, tokens: Tensor) -> Tensor:
    """1 where no logit of the row [T, V] is above that of its token, otherwise 0: fp32 [T]. The maximum is several
    times faster than the argmax; of equal logits each counts as the largest."""
    own = logits.gather(-1, tokens[:, None]).squeeze(-1)
    return (own >= logits.amax(-1)).float()


def inverse_temperature(temperature: float | Tensor, logits: Tensor) -> Tensor | None:
    if isinstance(temperature, Tensor):
        temperature = temperature.to(device=logits.device, dtype=torch.float32)
        return torch.where(temperature == 0, 1.0, temperature).reciprocal()[:, None]
    if temperature in (0, 1):
        return None
    # Rounded to fp32 before inversion, like a tensor of temperatures, so that both agree bitwise.
    return torch.full((1, 1), temperature, dtype=torch.float32, device=logits.device).reciprocal()


@Op
def _token_logprobs(logits: Tensor, tokens: Tensor, scale: Tensor | None, entropy: bool) -> Tensor:
    scaled = logits.float() if scale is None else logits.float() * scale
    logprobs = scaled.log_softmax(-1)
    chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    if not entropy:
        return chosen
    finite = logprobs.masked_fill(logprobs == -torch.inf, 0.0)
    return torch.stack([chosen, -(logprobs.exp() * finite).sum(-1)], 1)


def _is_plain(logits: Tensor, tokens: Tensor, scale: Tensor | None, entropy: bool) -> bool:
    return type(logits) is Tensor


@_token_logprobs.fast(_is_plain)
def _chunked(logits: Tensor, tokens: Tensor, scale: Tensor | None, entropy: bool) -> Tensor:
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return _values(logits, tokens, scale, entropy)
    result: Tensor = _ChunkedLogprobs.apply(logits, tokens, scale, entropy)  # type: ignore[no-untyped-call]
    return result


def _values(logits: Tensor, tokens: Tensor, scale: Tensor | None, entropy: bool) -> Tensor:
    logprobs = row_logprobs(logits, tokens, scale)
    if not entropy:
        return logprobs
    found = torch.stack([logprobs, logprobs], 1)
    for block in row_blocks(logits):
        shares, logs = shares_of(scaled_rows(logits, scale, block).log_softmax(-1))
        found[block, 1] = -shares.mul_(logs).sum(-1)
    return found


def shares_of(logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and finite logarithms, in place: a probability of 0 adds 0 to an entropy."""
    return logprobs.exp(), logprobs.clamp_(min=LEAST)


@Op
def row_logprobs(logits: Tensor, tokens: Tensor, scale: Tensor | None) -> Tensor:
    """Log-probabilities without a gradient, in blocks of rows: logits [T, V], tokens [T], scale [T, 1] or [1, 1] or
    None -> fp32 [T]."""
    result = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    for block in row_blocks(logits):
        rows = scaled_rows(logits, scale, block).log_softmax(-1)
        result[block] = rows.gather(-1, tokens[block, None]).squeeze(-1)
    return result


class _ChunkedLogprobs(torch.autograd.Function):
    """Log-probabilities in blocks of rows; backward recomputes the softmax block by block.

    PyTorch's softmax works row by row, so a token's log-probability is bitwise independent of the number of rows. (A
    plain sum over a long row is split among threads when there are few rows.)
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, scale: Tensor | None, entropy: bool) -> Tensor:
        found = _values(logits.detach(), tokens, scale, entropy)
        ctx.save_for_backward(logits, tokens, scale, found[:, 1:] if entropy else None)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits, tokens, scale, entropies = ctx.saved_tensors
        upstream = upstream_of(grads[0])
        if scale is not None:
            upstream = upstream * scale
        grad = torch.empty_like(logits)
        for block in row_blocks(logits):
            of_token, of_entropy = upstream[block, :1], upstream[block, 1:]
            rows = scaled_rows(logits, scale, block)
            if upstream.shape[1] == 1:
                weight = rows.softmax(-1).mul_(-of_token)
            else:
                weight = whole_row_gradient(rows.log_softmax(-1), entropies[block], of_token, of_entropy)
            weight.scatter_add_(-1, tokens[block, None], of_token)
            grad[block] = weight
        return grad, None, None, None


def upstream_of(grad: Tensor) -> Tensor:
    """Upstream gradients [T, 1], for log-probabilities only, or [T, 2]. An entropy without an upstream gradient costs
    nothing and changes no bits."""
    if grad.dim() == 1:
        return grad.float()[:, None]
    return grad.float() if grad[:, 1].any() else grad[:, :1].float()


def whole_row_gradient(logprobs: Tensor, entropies: Tensor, of_token: Tensor, of_entropy: Tensor) -> Tensor:
    """Gradient of scaled logits without the term of the selected token: from all log-probabilities [T, V], in place,
    and columns [T, 1]."""
    shares, logs = shares_of(logprobs)
    return logs.add_(entropies).mul_(-of_entropy).sub_(of_token).mul_(shares)


def row_blocks(logits: Tensor) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // logits.shape[1])
    return [slice(start, start + step) for start in range(0, logits.shape[0], step)]


def scaled_rows(logits: Tensor, scale: Tensor | None, block: slice) -> Tensor:
    part = logits[block].float()
    if scale is None:
        return part
    return part * (scale if scale.shape[0] == 1 else scale[block])
