"""What a step keeps in memory changes no result."""

import pytest
import torch
from torch import Tensor

from rondo.data.batching.packing import Document, PackedRow, pack
from rondo.models import decoder
from rondo.parallel.config import Checkpointing
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from support.alive import most_bytes_in
from support.tiny import VOCAB, tiny_model


def rows(count: int = 3, length: int = 64) -> list[PackedRow]:
    draw = torch.Generator().manual_seed(1)
    documents = []
    for _ in range(3 * count):
        tokens = torch.randint(0, VOCAB, (length // 3,), generator=draw).tolist()
        documents.append(Document(tokens, [1.0] * len(tokens)))
    return pack(documents, length)


def stepped(config: OptimConfig, steps: int = 2) -> tuple[list[float], list[Tensor]]:
    learner = Learner(tiny_model(), config)
    losses = []
    for _ in range(steps):
        losses.append(learner.forward_backward(rows(), cross_entropy)["loss"])
        learner.optim_step()
    return losses, [p.detach() for p in learner.model.parameters()]


@pytest.mark.parametrize("how", ["selective", "full"])
def test_layers_that_compute_again_learn_the_same(how: Checkpointing) -> None:
    losses, weights = stepped(OptimConfig(lr=1e-2))
    again, others = stepped(OptimConfig(lr=1e-2, checkpointing=how))
    assert again == losses
    assert all(map(torch.equal, weights, others))


def test_logits_in_parts_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "ROWS_AT_ONCE", 7)
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(40, 32, generator=draw)
    tokens = torch.randint(0, VOCAB, (40,), generator=draw)
    head = tiny_model(tie_word_embeddings=False).head
    whole, parts = ([y := x.clone().requires_grad_(), None] for _ in range(2))
    for chunked, found in ((False, whole), (True, parts)):
        head.chunked = chunked
        head.zero_grad()
        found[1] = head.logprobs(found[0], tokens, 0.7)
        (found[1] * torch.arange(40)).sum().backward()
        found += [p.grad.clone() for p in head.parameters() if p.grad is not None]
    assert torch.equal(parts[1], whole[1])
    assert y.grad is not None
    # A gradient is a sum over 40 rows, here of 6 sums: each addition may round once more, by 2^-24 of the largest.
    for mine, theirs in zip([parts[0].grad, *parts[2:]], [whole[0].grad, *whole[2:]], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=6 * 2**-23 * float(theirs.abs().max()))


def test_logits_in_parts_are_never_all_in_memory() -> None:
    words, rows = 4096, 4096
    head = tiny_model(tie_word_embeddings=False, vocab_size=words).head
    x, tokens = torch.randn(rows, 32, requires_grad=True), torch.arange(rows)

    def step(chunked: bool) -> int:
        head.chunked = chunked
        return most_bytes_in(lambda: head.logprobs(x, tokens, 1.0).sum().backward())

    logits = 4 * words * rows
    assert step(False) > 2 * logits
    assert step(True) < 0.8 * logits
