"""The losses of whole answers against their formulas, written out one answer at a time."""

import math
from collections.abc import Callable

import pytest
import torch

from rondo.train.losses.preference import BradleyTerry, Dpo, Ipo, Kto, Simpo
from rondo.train.losses.sums import LossOutput, Predictions

LOGPROBS = [[-1.0, -2.0], [-0.5, -0.25, -3.0], [-4.0], [-0.125, -0.5]]
REFERENCE = [-2.5, -4.0, -3.0, -1.0]
RECORDS = [5.0, 3.0, 3.0, 5.0]
CHOSEN = [0.0, 1.0, 0.0, 1.0]
PAIRS = [(1, 2), (3, 0)]
"""By record: the better answer and the other."""

SUMS = [sum(each) for each in LOGPROBS]
MEANS = [sum(each) / len(each) for each in LOGPROBS]
RATIOS = [own - reference for own, reference in zip(SUMS, REFERENCE, strict=True)]


def batch() -> tuple[torch.Tensor, Predictions]:
    logprobs = torch.tensor([x for each in LOGPROBS for x in each], requires_grad=True)
    documents = [0, 2, 5, 6, 8]
    facts = {
        "record": torch.tensor(RECORDS),
        "chosen": torch.tensor(CHOSEN),
        "reference": torch.tensor(REFERENCE),
    }
    return logprobs, Predictions(logprobs, torch.ones(8), {}, documents, facts)


def log_sigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


def dpo(i: int, j: int) -> float:
    return -log_sigmoid(0.3 * (RATIOS[i] - RATIOS[j]))


def ipo(i: int, j: int) -> float:
    mean = [ratio / len(each) for ratio, each in zip(RATIOS, LOGPROBS, strict=True)]
    return (mean[i] - mean[j] - 1 / (2 * 0.3)) ** 2


def simpo(i: int, j: int) -> float:
    return -log_sigmoid(2.0 * MEANS[i] - 2.0 * MEANS[j] - 0.7)


@pytest.mark.parametrize(
    ("loss", "formula"),
    [(Dpo(0.3), dpo), (Ipo(0.3), ipo), (Simpo(2.0, 0.7), simpo)],
    ids=["dpo", "ipo", "simpo"],
)
def test_a_loss_of_pairs_is_its_formula(
    loss: Callable[[Predictions], LossOutput], formula: Callable[[int, int], float]
) -> None:
    logprobs, given = batch()
    output = loss(given)
    assert output.total.item() == pytest.approx(sum(formula(i, j) for i, j in PAIRS), rel=1e-5)
    output.total.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert bool((logprobs.grad[[2, 3, 4, 6, 7]] < 0).all())
    assert bool((logprobs.grad[[0, 1, 5]] > 0).all())


def test_dpos_metrics_are_those_of_its_scores() -> None:
    output = Dpo(0.3)(batch()[1])
    margins = [0.3 * (RATIOS[i] - RATIOS[j]) for i, j in PAIRS]
    assert output.sums["margin"].item() == pytest.approx(sum(margins), rel=1e-5)
    assert output.sums["accuracy"].item() == sum(margin > 0 for margin in margins)
    assert output.sums["score/chosen"].item() == pytest.approx(0.3 * (RATIOS[1] + RATIOS[3]), rel=1e-5)


def test_ktos_loss_is_its_formula() -> None:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    expected = 0.0
    for ratio, chosen in zip(RATIOS, CHOSEN, strict=True):
        above = 0.4 * (ratio - 0.25)
        expected += 1.5 * (1 - sigmoid(above)) if chosen else 0.5 * (1 - sigmoid(-above))
    output = Kto(0.4, kl=0.25, good_weight=1.5, bad_weight=0.5)(batch()[1])
    assert output.total.item() == pytest.approx(expected, rel=1e-5)
    right = sum((ratio > 0.25) == (chosen > 0) for ratio, chosen in zip(RATIOS, CHOSEN, strict=True))
    assert output.sums["accuracy"].item() == right


def test_a_reward_models_loss_is_its_formula() -> None:
    scores = torch.tensor([0.5, -1.0, 2.0, 0.25])
    facts = {"record": torch.tensor(RECORDS), "chosen": torch.tensor(CHOSEN)}
    output = BradleyTerry(center=0.1)(Predictions(scores, torch.ones(4), {}, [0, 1, 2, 3, 4], facts))
    expected = sum(
        -log_sigmoid(float(scores[i] - scores[j])) + 0.1 * float(scores[i] + scores[j]) ** 2 for i, j in PAIRS
    )
    assert output.total.item() == pytest.approx(expected, rel=1e-5)


def test_a_document_without_predictions_has_the_sum_zero() -> None:
    given = Predictions(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), {}, [0, 1, 1, 3])
    assert given.by_document(given.logprobs).tolist() == [1.0, 0.0, 5.0]
