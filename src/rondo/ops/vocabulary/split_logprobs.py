"""The log-probability of each next token with the vocabulary divided among ranks; no rank has whole logits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rondo.ops.vocabulary.logprobs import (
    inverse_temperature,
    row_blocks,
    scaled_rows,
    shares_of,
    upstream_of,
    whole_row_gradient,
)

Gather = Callable[[Tensor], Tensor]
"""All-gather: [..] of each of n ranks -> [n, ..], the same on all ranks."""


def split_logprobs(
    logits: Tensor,
    tokens: Tensor,
    temperature: float | Tensor,
    first: int,
    gather: Gather,
    entropy: bool = False,
) -> Tensor:
    """Like `token_logprobs`, from this rank's columns of the logits, [T, V/n] from column `first`. Results are bitwise
    equal on all ranks. Communication is two numbers a row, three with entropies, and none in backward."""
    scale = inverse_temperature(temperature, logits)
    result: Tensor = _SplitLogprobs.apply(  # type: ignore[no-untyped-call]
        logits, tokens, scale, first, gather, entropy
    )
    return result


@torch.no_grad()
def split_top1_hits(logits: Tensor, tokens: Tensor, first: int, gather: Gather) -> Tensor:
    """Like `top1_hits`, from this rank's columns of the logits, [T, V/n] from column `first`."""
    last = logits.shape[1] - 1
    here = (tokens >= first) & (tokens <= first + last)
    own = logits.gather(-1, (tokens - first).clamp(0, last)[:, None]).squeeze(-1)
    chosen, tops = gather(torch.stack([own.masked_fill(~here, -torch.inf), logits.amax(-1)])).unbind(1)
    return (chosen.amax(0) >= tops.amax(0)).float()


class _SplitLogprobs(torch.autograd.Function):
    """Log-probabilities in blocks of rows; backward recomputes the softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        tokens: Tensor,
        scale: Tensor | None,
        first: int,
        gather: Gather,
        entropy: bool,
    ) -> Tensor:
        last = logits.shape[1] - 1
        here = (tokens >= first) & (tokens <= first + last)
        columns = (tokens - first).clamp(0, last)[:, None]
        own = torch.empty(3 if entropy else 2, len(logits), device=logits.device)
        for block in row_blocks(logits):
            rows = scaled_rows(logits, scale, block)
            own[0, block] = rows.logsumexp(-1)
            own[1, block] = rows.gather(-1, columns[block])[:, 0]
            if entropy:
                shares, logs = shares_of(rows - own[0, block, None])
                own[2, block] = -shares.mul_(logs).sum(-1)
        own[1].masked_fill_(~here, -torch.inf)
        sums, chosen, *entropies = gather(own).unbind(1)
        whole = sums.logsumexp(0)
        found = chosen.amax(0) - whole
        if entropy:
            found = torch.stack([found, _entropy(sums - whole, entropies[0])], 1)
        ctx.save_for_backward(logits, columns, here, whole, scale, found[:, 1:] if entropy else None)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, columns, here, whole, scale, entropies = ctx.saved_tensors
        upstream = upstream_of(grads[0])
        if scale is not None:
            upstream = upstream * scale
        grad = torch.empty_like(logits)
        for block in row_blocks(logits):
            of_token, of_entropy = upstream[block, :1], upstream[block, 1:]
            logprobs = scaled_rows(logits, scale, block) - whole[block, None]
            if upstream.shape[1] == 1:
                weight = logprobs.exp_().mul_(-of_token)
            else:
                weight = whole_row_gradient(logprobs, entropies[block], of_token, of_entropy)
            weight.scatter_add_(-1, columns[block], of_token * here[block, None])
            grad[block] = weight
        return grad, None, None, None, None, None


def _entropy(logs: Tensor, entropies: Tensor) -> Tensor:
    """Entropy of the whole distribution, from the logarithm of each part's mass, [n, T], and the entropy within each
    part."""
    shares, logs = shares_of(logs)
    return (shares * (entropies - logs)).sum(0)
