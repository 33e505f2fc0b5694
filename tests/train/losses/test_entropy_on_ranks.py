"""A loss that wants entropies gets them in every layout, with their gradients."""

from typing import Any

import pytest
import torch

from rondo.data.batching.packing import Document, pack
from rondo.models import Packed, decoder
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import LossOutput, Predictions
from support.launch import fork
from support.layouts import Undecided, alone, on_ranks, same
from support.tiny import VOCAB, tiny_model

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"zero": 3}, {}),
    ({"tp": 2}, {"answers": True}),
    ({"cp": 2}, {}),
    ({"cp": 2, "cp_method": "ring"}, {}),
    ({"pp": 2}, {}),
]


def test_ranks_are_as_one() -> None:
    cases = [(layout, changes | {"loss": Undecided()}) for layout, changes in CASES]
    for_ranks = fork(on_ranks, 2, cases)
    for i, (_, changes) in enumerate(cases):
        one = alone(**changes)
        for of_rank in for_ranks:
            same(of_rank[i], one)


@pytest.mark.parametrize("at_once", [1024, 4])
def test_a_learner_gives_the_entropy_of_what_it_chose_from(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "ROWS_AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (20,), generator=draw).tolist()
    learner = Learner(tiny_model(), OptimConfig(checkpointing="full"))
    rows = pack([Document(tokens, [1.0] * 20)], 32)
    seen: list[Predictions] = []

    class Asks:
        needs_entropy = True

        def __call__(self, batch: Predictions) -> LossOutput:
            seen.append(batch)
            return LossOutput(batch.logprobs.sum())

    learner.forward_backward(rows, Asks(), temperature=0.7)
    learner.forward_backward(rows, lambda batch: Asks()(batch), temperature=0.7)
    learner.measure(rows, Asks())
    asked, unasked, measured = seen
    ids = torch.tensor(tokens[:-1])
    logits = learner.model(ids, torch.arange(19), Packed([0, 19]))
    assert asked.entropy is not None
    assert measured.entropy is not None
    torch.testing.assert_close(asked.entropy, torch.distributions.Categorical(logits=logits / 0.7).entropy())
    torch.testing.assert_close(measured.entropy, torch.distributions.Categorical(logits=logits).entropy())
    assert unasked.entropy is None
    assert torch.equal(asked.logprobs, unasked.logprobs)
