"""A divided vocabulary beside a whole one."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rondo.ops import token_logprobs, top1_hits
from rondo.ops.vocabulary import logprobs
from rondo.ops.vocabulary.split_logprobs import split_logprobs, split_top1_hits
from rondo.parallel.collectives import gather_equal
from support.ranks import ThreadRanks

ROWS, VOCAB, SIZE = 7, 20, 3
PART = -(-VOCAB // SIZE)


@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.linspace(0, 2, ROWS)], ids=["1", "0.7", "each"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("entropy", [False, True], ids=["logprobs", "entropies"])
def test_a_divided_vocabulary(
    ranks: ThreadRanks,
    temperature: float | Tensor,
    dtype: torch.dtype,
    entropy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2 * PART)
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(ROWS, VOCAB, generator=draw) * 30).to(dtype)
    tokens = torch.tensor([0, 6, 7, 13, 14, 19, 3])
    weights = torch.randn((ROWS, 2) if entropy else (ROWS,), generator=draw)

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        first = group.rank() * PART
        own = logits[:, first : first + PART].clone().requires_grad_()
        found = split_logprobs(
            own, tokens, temperature, first, lambda x: gather_equal(x[None], group), entropy
        )
        (found * weights).sum().backward()
        assert own.grad is not None
        return found.detach(), own.grad

    whole = logits.clone().requires_grad_()
    wanted = token_logprobs(whole, tokens, temperature, entropy)
    (wanted * weights).sum().backward()
    outcomes = ranks.run_in_group(SIZE, rank)
    close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5 if dtype == torch.float32 else 1e-2)
    for found, _ in outcomes:
        assert torch.equal(found, outcomes[0][0])
        close(found, wanted.detach())
    close(torch.cat([grad for _, grad in outcomes], 1), whole.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_top1_hits_of_a_divided_vocabulary(ranks: ThreadRanks, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, VOCAB, generator=draw).to(dtype)
    tokens = logits.argmax(-1)
    tokens[::2] = (tokens[::2] + 1) % VOCAB

    def rank(group: ProcessGroup) -> Tensor:
        first = group.rank() * PART
        own = logits[:, first : first + PART]
        return split_top1_hits(own, tokens, first, lambda x: gather_equal(x[None], group))

    wanted = torch.tensor([0.0, 1.0] * ROWS)[:ROWS]
    assert torch.equal(top1_hits(logits, tokens), wanted)
    for found in ranks.run_in_group(SIZE, rank):
        assert torch.equal(found, wanted)


def test_rows_that_predict_nothing(ranks: ThreadRanks) -> None:
    def rank(group: ProcessGroup) -> int:
        logits, tokens = torch.zeros(0, PART).requires_grad_(), torch.zeros(0, dtype=torch.int64)
        found = split_logprobs(logits, tokens, 1.0, 0, lambda x: gather_equal(x[None], group))
        found.sum().backward()
        return len(found)

    assert ranks.run_in_group(SIZE, rank) == [0] * SIZE
