"""The critic's loss beside a plain loop, which is what PPO's authors wrote token by token."""

import random
from typing import Any

import pytest
import torch

from rondo.data.batching.packing import Document, Tree, pack
from rondo.train.losses.sums import LossOutput, Predictions, counted, cross_entropy
from rondo.train.losses.value import ValueLoss, WithValues

LENGTHS = [3, 1, 4, 2]


def make_case(seed: int) -> list[dict[str, list[float]]]:
    source = random.Random(seed)
    names = ("before", "now", "returns")
    return [{name: [source.gauss(0, 1) for _ in range(n)] for name in names} for n in LENGTHS]


def by_hand(case: list[dict[str, list[float]]], clip: float) -> tuple[float, list[float], float]:
    """Value, derivative by each value now, and the share that the clip holds back."""
    loss, gradient, held, count = 0.0, [], 0, sum(LENGTHS)
    for sample in case:
        for before, now, target in zip(sample["before"], sample["now"], sample["returns"], strict=True):
            error, slope = (now - target) ** 2, 2 * (now - target)
            if clip:
                near = min(max(now, before - clip), before + clip)
                if (near - target) ** 2 > error:
                    error, slope, held = (near - target) ** 2, 0.0, held + 1
            loss += 0.5 * error / count
            gradient.append(0.5 * slope / count)
    return loss, gradient, held / count


def ours(case: list[dict[str, list[float]]], loss: Any, budget: int) -> tuple[float, list[float], float]:
    table = torch.tensor([x for sample in case for x in sample["now"]], requires_grad=True)
    branches, first = [], 0
    for i, sample in enumerate(case):
        n = len(sample["now"])
        columns = {
            "values": sample["before"],
            "returns": sample["returns"],
            "at": list(map(float, range(first, first + n))),
        }
        # Weights are the policy's: a critic's tokens all count alike.
        branches.append(Document([i] * n, [0.3 + i] * n, columns))
        first += n
    rows = pack([Tree([1, 1], branches)], budget)
    valid = sum(counted(loss, row) for row in rows)
    total, held = torch.zeros(()), 0.0
    for row in rows:
        columns = {name: torch.from_numpy(column) for name, column in row.columns.items()}
        values = table[columns.pop("at").long()]
        output: LossOutput = loss(_seen(loss, values, torch.from_numpy(row.weights), columns))
        total = total + output.total / valid
        held += float(output.sums.get("critic/clip_share", 0.0)) / valid
    total.backward()
    assert table.grad is not None
    return total.item(), table.grad.tolist(), held


def _seen(loss: Any, values: torch.Tensor, weights: torch.Tensor, columns: Any) -> Predictions:
    if isinstance(loss, ValueLoss):
        return Predictions(values, weights, columns)
    return Predictions(torch.zeros_like(values).detach(), weights, columns, values=values)


@pytest.mark.parametrize("clip", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("budget", [8, 1000])
def test_it_is_half_the_clipped_squared_error_over_all_tokens(clip: float, budget: int) -> None:
    case = make_case(1)
    loss, gradient, held = ours(case, ValueLoss(clip), budget)
    expected = by_hand(case, clip)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    assert gradient == pytest.approx(expected[1], abs=1e-6)
    assert held == pytest.approx(expected[2])
    assert (held > 0) == (clip > 0)


def test_beside_the_policys_loss_it_counts_as_much_as_it_is_told() -> None:
    case = make_case(2)
    alone = ours(case, ValueLoss(0.2), 1000)
    both = ours(case, WithValues(cross_entropy, ValueLoss(0.2), 0.25), 1000)
    assert both[0] == pytest.approx(alone[0] / 4, rel=1e-5)
    assert both[1] == pytest.approx([x / 4 for x in alone[1]], abs=1e-7)
