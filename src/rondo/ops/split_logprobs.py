"""The log-probability of each next token where the vocabulary is divided among ranks: nobody has whole logits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rondo.ops.logprobs import inverse_temperature, row_blocks, scaled_rows

Gather = Callable[[Tensor], Tensor]
"""[..] of each of n ranks -> [n, ..], the same on all."""


def split_logprobs(
    logits: Tensor, tokens: Tensor, temperature: float | Tensor, first: int, gather: Gather
) -> Tensor:
    """As `token_logprobs`, from this rank's columns of the logits, [T, V/n] from column `first` on: equal on all ranks,
    to the last bit. They send each other two numbers a row; backward sends nothing."""
    scale = inverse_temperature(temperature, logits)
    result: Tensor = _SplitLogprobs.apply(logits, tokens, scale, first, gather)  # type: ignore[no-untyped-call]
    return result


class _SplitLogprobs(torch.autograd.Function):
    """A block of rows at a time; backward makes the softmax again."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, scale: Tensor | None, first: int, gather: Gather
    ) -> Tensor:
        last = logits.shape[1] - 1
        here = (tokens >= first) & (tokens <= first + last)
        columns = (tokens - first).clamp(0, last)[:, None]
        own = torch.empty(2, len(logits), device=logits.device)
        for block in row_blocks(logits):
            rows = scaled_rows(logits, scale, block)
            own[0, block] = rows.logsumexp(-1)
            own[1, block] = rows.gather(-1, columns[block])[:, 0]
        own[1].masked_fill_(~here, -torch.inf)
        sums, chosen = gather(own).unbind(1)
        whole = sums.logsumexp(0)
        ctx.save_for_backward(logits, columns, here, whole, scale)
        return chosen.amax(0) - whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, columns, here, whole, scale = ctx.saved_tensors
        upstream = grads[0].float()[:, None]
        if scale is not None:
            upstream = upstream * scale
        grad = torch.empty_like(logits)
        for block in row_blocks(logits):
            weight = (scaled_rows(logits, scale, block) - whole[block, None]).exp_()
            weight.mul_(-upstream[block])
            weight.scatter_add_(-1, columns[block], upstream[block] * here[block, None])
            grad[block] = weight
        return grad, None, None, None, None
