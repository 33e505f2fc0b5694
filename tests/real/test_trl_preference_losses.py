"""Our losses of whole answers, fed through packing, are TRL's, value and gradient."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.data.batching.packing import Document, Tree, pack
from rondo.train.config import PreferenceConfig
from rondo.train.losses.preference import BradleyTerry, Kto
from rondo.train.losses.sums import Loss, Predictions, counted
from rondo.train.recipes.preference import loss_of
from support.peers import run_peer

pytestmark = pytest.mark.real

LONGEST, PAIRS = 9, 5


def make_case(seed: int, loss: str, **settings: float) -> dict[str, Any]:
    """The better answers first, then in the same order the others; KTO's are of no pairs."""
    source = random.Random(seed)
    lengths = [source.randint(1, LONGEST) for _ in range(2 * PAIRS)]

    def table() -> list[list[float]]:
        return [[source.uniform(-3, -0.1) for _ in range(LONGEST)] for _ in lengths]

    return {
        "loss": loss,
        "lengths": lengths,
        "mask": [[int(i < n) for i in range(LONGEST)] for n in lengths],
        "logprobs": [source.gauss(0, 1) for _ in lengths] if loss == "reward" else table(),
        "reference": table(),
        "aside": table(),
        "aside_reference": table(),
        "good": [i in (0, 3, 4) for i in range(len(lengths))],
        **settings,
    }


CASES = [
    make_case(1, "dpo", beta=0.1),
    make_case(2, "dpo", beta=0.5),
    make_case(3, "ipo", beta=0.1),
    make_case(4, "ipo", beta=0.02),
    make_case(5, "simpo", beta=2.0, gamma=1.0),
    make_case(6, "simpo", beta=0.5, gamma=0.0),
    make_case(7, "kto", beta=0.1, good_weight=1.0, bad_weight=1.0),
    make_case(8, "kto", beta=0.3, good_weight=1.33, bad_weight=0.5),
    make_case(9, "reward", center=0.0),
    make_case(10, "reward", center=0.01),
]


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    said = run_peer("trl", Path(__file__).with_name("_trl_preference_losses.py"), asked=json.dumps(CASES))
    answers: list[dict[str, Any]] = json.loads(said.splitlines()[-1])
    return answers


def sums(case: dict[str, Any], name: str) -> list[float]:
    return [sum(row[:n]) for row, n in zip(case[name], case["lengths"], strict=True)]


def loss_for(case: dict[str, Any]) -> Loss:
    if case["loss"] == "reward":
        return BradleyTerry(case["center"])
    told = {name: case[name] for name in ("beta", "gamma", "good_weight", "bad_weight") if name in case}
    loss = loss_of(PreferenceConfig(loss=case["loss"], **told))
    if isinstance(loss, Kto):
        moved = [a - b for a, b in zip(sums(case, "aside"), sums(case, "aside_reference"), strict=True)]
        return Kto(loss.beta, max(0.0, sum(moved) / len(moved)), loss.good_weight, loss.bad_weight)
    return loss


def trees(case: dict[str, Any]) -> list[Tree]:
    paired, scored = case["loss"] != "kto", case["loss"] == "reward"
    documents = []
    for i, (length, reference) in enumerate(zip(case["lengths"], sums(case, "reference"), strict=True)):
        good = i < PAIRS if paired else case["good"][i]
        facts = {"record": i % PAIRS if paired else i, "chosen": float(good), "reference": reference}
        count = 1 if scored else length
        at = [float(i)] if scored else [float(i * LONGEST + t) for t in range(length)]
        documents.append(Document([i] * count, [1.0] * count, {"at": at}, facts))
    if paired:
        return [Tree([1, 1], [documents[i], documents[i + PAIRS]]) for i in range(PAIRS)]
    return [Tree([1, 1], [document]) for document in documents]


def ours(case: dict[str, Any]) -> dict[str, Any]:
    table = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    loss, rows = loss_for(case), pack(trees(case), 24 if case["loss"] != "reward" else 6)
    assert len(rows) > 1
    count = sum(counted(loss, row) for row in rows)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logprobs = table.flatten()[torch.from_numpy(row.columns["at"]).long()]
        facts = {name: torch.from_numpy(facts).double() for name, facts in row.facts.items()}
        weights = torch.from_numpy(row.weights).double()
        total = total + loss(Predictions(logprobs, weights, {}, row.documents, facts)).total / count
    total.backward()
    assert table.grad is not None
    return {"loss": total.item(), "gradient": table.grad.tolist()}


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{i}-{case['loss']}" for i, case in enumerate(CASES)]
)
def test_losses_of_whole_answers_are_trls(index: int, theirs: list[dict[str, Any]]) -> None:
    own, peer = ours(CASES[index]), theirs[index]
    assert own["loss"] == pytest.approx(peer["loss"], rel=1e-5)
    torch.testing.assert_close(
        torch.tensor(own["gradient"]), torch.tensor(peer["gradient"]), rtol=1e-4, atol=1e-7
    )
