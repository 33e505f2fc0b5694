"""Token accuracy of SFT is that of the argmax in every layout, and changes no bit of the loss and of its gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.data.batching.packing import Document, pack
from rondo.models import Packed, decoder
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.losses.sums import AnswerCrossEntropy, Loss, cross_entropy
from support import layouts
from support.launch import fork
from support.tiny import VOCAB, tiny_model
from train.losses import _repeated

LAYOUTS: list[dict[str, Any]] = [
    {"zero": 3},
    {"tp": 2},
    {"cp": 2},
    {"pp": 2},
]


def test_ranks_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"loss": AnswerCrossEntropy(), **_repeated.REPEATS}
    for_ranks = fork(_repeated.on_ranks, 2, [(layout, changes) for layout in LAYOUTS])
    monkeypatch.setattr(layouts, "rows_of", _repeated.rows_in_pairs)
    one = layouts.alone(**changes)
    assert 0.2 < one.metrics[0]["token_accuracy"] < 0.8
    for of_rank in for_ranks:
        for found in of_rank:
            layouts.same(found, one)
            assert found.metrics[0]["token_accuracy"] == pytest.approx(one.metrics[0]["token_accuracy"])


def test_a_rank_without_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"loss": AnswerCrossEntropy()}
    for_ranks = fork(_repeated.on_late_ranks, 2, [({"cp": 2}, changes)])
    monkeypatch.setattr(layouts, "rows_of", _repeated.rows_with_a_late_answer)
    one = layouts.alone(**changes)
    for (found,) in for_ranks:
        layouts.same(found, one)
    head = tiny_model().head
    nothing = head.logprobs(torch.empty(0, 32), torch.empty(0, dtype=torch.long), 1.0, False, True)
    assert nothing.shape == (0, 2)


@pytest.mark.parametrize("at_once", [1024, 4])
@pytest.mark.parametrize("precision", ["", "bfloat16"])
def test_the_accuracy_is_that_of_the_argmax(
    at_once: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "ROWS_AT_ONCE", at_once)
    config = OptimConfig(checkpointing="full", **({"precision": precision} if precision else {}))
    model = tiny_model()
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (40,), generator=draw)
    own = Learner(model, config).computing
    ids[10] = own(ids[:-1], torch.arange(39), Packed([0, 39]))[9].argmax()
    ids[20] = own(ids[:-1], torch.arange(39), Packed([0, 39]))[19].argmax()
    right = own(ids[:-1], torch.arange(39), Packed([0, 39])).argmax(-1) == ids[1:]
    weights = [0.0] * 15 + [1.0] * 20 + [0.5] * 5
    rows = pack([Document(ids.tolist(), weights)], 64)
    wanted = right[14:].float().mean()
    assert wanted > 0

    def trained(loss: Loss) -> tuple[Metrics, list[Tensor | None]]:
        learner = Learner(tiny_model(), config)
        metrics = learner.forward_backward(rows, loss)
        assert learner.measure(rows, loss) == pytest.approx(metrics)
        return metrics, [parameter.grad for parameter in learner.model.parameters()]

    metrics, gradients = trained(AnswerCrossEntropy())
    plain, plain_gradients = trained(cross_entropy)
    assert metrics.pop("token_accuracy") == pytest.approx(float(wanted))
    assert metrics == plain
    for one, other in zip(gradients, plain_gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
