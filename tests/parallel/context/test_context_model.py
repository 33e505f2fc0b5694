"""A model whose rows are divided gives the log-probabilities and the gradients of one process."""

import copy
import itertools

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rondo.models.attend import Packed
from rondo.ops import token_logprobs
from rondo.parallel.context.context import Context, Method
from support.ranks import ThreadRanks
from support.tiny import VOCAB, tiny_model

DOCUMENTS = [0, 5, 40, 64]
CHANGES = {
    "plain": {},
    "lengths count": {
        "max_position_embeddings": 8,
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    },
}


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize(("method", "size"), [*itertools.product(["ulysses", "ring"], [2, 4])])
def test_a_model_over_ranks(ranks: ThreadRanks, method: Method, size: int, changes: str) -> None:
    model = tiny_model(**CHANGES[changes]).float()
    make = torch.Generator().manual_seed(5)
    whole = Packed(DOCUMENTS)
    tokens = torch.randint(VOCAB, (DOCUMENTS[-1],), generator=make)
    where = torch.tensor([1, 62, 3, 3, 2, 39, 40])  # of four ranks one has none
    targets = torch.randint(VOCAB, where.shape, generator=make)
    weights = torch.randn(where.shape, generator=make)

    logprobs = token_logprobs(model.head(model.trunk(tokens, whole.positions, whole, where)), targets)
    (logprobs.exp() * weights).sum().backward()

    def rank(group: ProcessGroup) -> tuple[Tensor, list[Tensor]]:
        own, number = copy.deepcopy(model), group.rank()
        own.zero_grad()
        context = Context(group, method)
        cut = context.cut(len(tokens))
        deal = cut.deal(where.numpy())
        held, read, mine = (
            torch.from_numpy(x) for x in (cut.tokens(number), deal.read(number), deal.own(number))
        )
        attend = context.attend(whole, cut)
        hidden = own.trunk(tokens[held], whole.positions[held], attend, read)
        found = context.gather(token_logprobs(own.head(hidden), targets[mine]), deal)
        (found.exp() * weights).sum().backward()
        return found.detach(), [x.grad for x in own.parameters() if x.grad is not None]

    found, gradients = zip(*ranks.run_in_group(size, rank))
    for each in found:
        torch.testing.assert_close(each, logprobs.detach(), rtol=1e-6, atol=1e-6)
    for parameter, *parts in zip(model.parameters(), *gradients, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(sum(parts), parameter.grad, rtol=1e-5, atol=1e-6)
