"""What on-policy distillation learns from is, over all that the policy may say, TRL's reverse divergence (GKD, lambda
and beta 1): the sum of the advantages is its value, the policy's gradient its gradient."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.ops import token_logprobs
from rondo.rl.update.config import DistillConfig
from rondo.rl.update.distill import distilled
from rondo.train.losses.policy import PolicyLoss
from rondo.train.losses.sums import Predictions
from support.peers import run_peer

pytestmark = pytest.mark.real

ROWS, VOCAB = 5, 11


def make_case(seed: int, temperature: float) -> dict[str, Any]:
    source = random.Random(seed)

    def logits() -> list[list[float]]:
        return [[source.gauss(0, 2) for _ in range(VOCAB)] for _ in range(ROWS)]

    return {"student": logits(), "teacher": logits(), "temperature": temperature}


CASES = [make_case(1, 1.0), make_case(2, 0.7)]


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    said = run_peer("trl", Path(__file__).with_name("_trl_reverse_kl.py"), asked=json.dumps(CASES))
    answers: list[dict[str, Any]] = json.loads(said.splitlines()[-1])
    return answers


def ours(case: dict[str, Any]) -> dict[str, Any]:
    """Each token of the vocabulary once, as often as the student says it."""
    table = torch.tensor(case["student"], requires_grad=True)
    tokens = torch.arange(VOCAB).repeat(ROWS)
    logprobs = token_logprobs(table.repeat_interleave(VOCAB, 0), tokens, case["temperature"])
    teacher = token_logprobs(
        torch.tensor(case["teacher"]).repeat_interleave(VOCAB, 0), tokens, case["temperature"]
    )
    sampler = logprobs.detach()
    told = DistillConfig(teacher="theirs")
    advantages = torch.from_numpy(
        distilled(sampler.tolist(), teacher.tolist(), [True] * len(tokens), told)
    ).float()
    columns = {"advantages": advantages, "sampler_logprobs": sampler}
    output = PolicyLoss()(Predictions(logprobs, sampler.exp(), columns))
    output.total.backward()
    assert table.grad is not None
    return {"loss": float(-(sampler.exp() * advantages).sum()), "gradient": table.grad.tolist()}


@pytest.mark.parametrize("index", range(len(CASES)))
def test_the_advantages_are_trls_reverse_divergence(index: int, theirs: list[dict[str, Any]]) -> None:
    own, peer = ours(CASES[index]), theirs[index]
    assert own["loss"] == pytest.approx(peer["loss"], rel=1e-4)
    torch.testing.assert_close(
        torch.tensor(own["gradient"]), torch.tensor(peer["gradient"]), rtol=1e-3, atol=1e-5
    )
