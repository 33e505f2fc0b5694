"""Our policy loss, fed through packing and the weights of each aggregate, is TRL's, value and gradient."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.data.packing import Document, Tree, pack
from rondo.rl.advantages import Aggregate, token_weights
from rondo.train.losses import PolicyLoss, Predictions
from support.peers import run_peer

pytestmark = pytest.mark.real

LONGEST = 12
AGGREGATES: dict[str, Aggregate] = {"dapo": "token", "grpo": "sequence", "dr_grpo": "constant"}


def make_case(seed: int, loss_type: str, kl: float, clip_low: float, clip_high: float) -> dict[str, Any]:
    source = random.Random(seed)
    lengths = [source.randint(1, LONGEST) for _ in range(6)]

    def rows(low: float, high: float) -> list[list[float]]:
        return [[source.uniform(low, high) for _ in range(LONGEST)] for _ in lengths]

    sampled = rows(-3, -0.1)
    return {
        "loss_type": loss_type,
        "kl": kl,
        "clip_low": clip_low,
        "clip_high": clip_high,
        "longest": LONGEST,
        "lengths": lengths,
        "mask": [[int(i < n) for i in range(LONGEST)] for n in lengths],
        "sampled": sampled,
        "logprobs": [[x + source.gauss(0, 0.3) for x in row] for row in sampled],
        "reference": rows(-3, -0.1),
        "advantages": [source.gauss(0, 1) for _ in lengths],
    }


CASES = [
    make_case(seed, loss_type, kl, *clip)
    for seed, (loss_type, kl, clip) in enumerate(
        (loss_type, kl, clip)
        for loss_type in AGGREGATES
        for kl in (0.0, 0.04)
        for clip in ((0.2, 0.2), (0.2, 0.28))
    )
]


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    said = run_peer("trl", Path(__file__).with_name("_trl_grpo_loss.py"), asked=json.dumps(CASES))
    answers: list[dict[str, Any]] = json.loads(said.splitlines()[-1])
    return answers


def ours(case: dict[str, Any]) -> dict[str, Any]:
    weights = token_weights(case["lengths"], AGGREGATES[case["loss_type"]], LONGEST)
    branches = []
    for i, length in enumerate(case["lengths"]):
        columns = {
            "sampler_logprobs": case["sampled"][i][:length],
            "reference_logprobs": case["reference"][i][:length],
            "advantages": [case["advantages"][i]] * length,
            "at": [i * LONGEST + t for t in range(length)],
        }
        branches.append(Document([i] * length, [weights[i]] * length, columns))
    table = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    loss = PolicyLoss(case["clip_low"], case["clip_high"], case["kl"])
    rows = pack([Tree([1, 1], branches)], 16)
    valid = sum(row.valid for row in rows)
    total, clipped = torch.zeros((), dtype=torch.float64), 0.0
    for row in rows:
        columns = {name: torch.from_numpy(column) for name, column in row.columns.items()}
        batch = Predictions(table.flatten()[columns.pop("at").long()], torch.from_numpy(row.weights), columns)
        output = loss(batch)
        total = total + output.total / valid
        clipped += float(output.sums["clip_share"]) / valid
    total.backward()
    assert table.grad is not None
    assert len(rows) > 1
    return {"loss": total.item(), "gradient": table.grad.tolist(), "clip_share": clipped}


@pytest.mark.parametrize(
    "index", range(len(CASES)), ids=[f"{c['loss_type']}-kl{c['kl']}-clip{c['clip_high']}" for c in CASES]
)
def test_the_policy_loss_is_trls(index: int, theirs: list[dict[str, Any]]) -> None:
    own, peer = ours(CASES[index]), theirs[index]
    assert own["loss"] == pytest.approx(peer["loss"], rel=1e-5, abs=1e-7)
    assert own["clip_share"] == pytest.approx(peer["clip_share"], abs=1e-6)
    assert peer["clip_share"] > 0
    torch.testing.assert_close(
        torch.tensor(own["gradient"]), torch.tensor(peer["gradient"]), rtol=1e-4, atol=1e-7
    )
