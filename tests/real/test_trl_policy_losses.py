"""Our losses of policies, fed through the config, packing and the weights of each aggregate, are TRL's, value and
gradient."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rondo.data.batching.packing import Document, Tree, pack
from rondo.rl.config import RlConfig
from rondo.rl.update.advantages import divergences, token_advantages, token_weights
from rondo.rl.update.objective import policy_loss
from rondo.train.losses.sums import Predictions
from support.peers import run_peer

pytestmark = pytest.mark.real

LONGEST, PROMPTS, SAMPLES = 12, 2, 3


def make_case(seed: int, config: RlConfig, loss_type: str, **theirs: Any) -> dict[str, Any]:
    """Numbers, and TRL's words for the config."""
    source = random.Random(seed)
    lengths = [source.randint(1, LONGEST) for _ in range(PROMPTS * SAMPLES)]
    spread = 0.03 if config.ratio == "product" else 0.003 if config.ratio == "sequence" else 0.3

    def rows(low: float, high: float) -> list[list[float]]:
        return [[source.uniform(low, high) for _ in range(LONGEST)] for _ in lengths]

    def near(table: list[list[float]], spread: float) -> list[list[float]]:
        return [[x + source.gauss(0, spread) for x in row] for row in table]

    old = rows(-3, -0.1)
    return {
        "loss_type": loss_type,
        "kl": config.kl,
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
        "longest": LONGEST,
        "samples": SAMPLES,
        "lengths": lengths,
        "mask": [[int(i < n) for i in range(LONGEST)] for n in lengths],
        "old": old,
        "sampled": near(old, 0.3),
        "logprobs": near(old, spread),
        "entropies": rows(0, 2),
        "reference": rows(-3, -0.1),
        "advantages": [source.gauss(0, 1) for _ in lengths],
        "rewards": [source.uniform(0, 1) for _ in lengths],
        **theirs,
    }


def rl(**changes: Any) -> RlConfig:
    return RlConfig(max_tokens=LONGEST, **changes)


SETTINGS: dict[str, tuple[RlConfig, dict[str, Any]]] = {
    f"{name}-kl{kl}-clip{clip}": (
        rl(**algorithm, kl=kl, clip_high=clip),
        {"loss_type": loss_type},
    )
    for name, loss_type, algorithm in (
        ("dapo", "dapo", {"algorithm": "dapo"}),
        ("bnpo", "bnpo", {"algorithm": "grpo"}),
        ("grpo", "grpo", {"algorithm": "grpo", "aggregate": "sequence"}),
        ("dr_grpo", "dr_grpo", {"algorithm": "dr_grpo"}),
    )
    for kl in (0.0, 0.04)
    for clip in (0.2, 0.28)
}
SETTINGS |= {
    "dual clip": (rl(dual_clip=1.5), {"loss_type": "dapo", "dual_clip": 1.5}),
    "unbiased kl": (rl(kl=0.1, kl_unbiased=True), {"loss_type": "dapo", "kl_unbiased": True}),
    "entropy": (rl(entropy=0.05, aggregate="sequence"), {"loss_type": "grpo", "entropy": 0.05}),
    "gspo": (rl(algorithm="gspo"), {"loss_type": "grpo", "level": "sequence"}),
    "gspo by token": (
        rl(algorithm="gspo", aggregate="token", kl=0.04),
        {"loss_type": "dapo", "level": "sequence"},
    ),
    "gspo, unbiased kl": (
        rl(algorithm="gspo", kl=0.04, kl_unbiased=True),
        {"loss_type": "grpo", "level": "sequence", "kl_unbiased": True},
    ),
    # TRL's bound is of the ratio, ours of what it is above 1.
    "cispo": (rl(algorithm="cispo"), {"loss_type": "cispo", "clip_high": 5.0}),
    "cispo, clipped": (
        rl(algorithm="cispo", clip_high=0.2, kl=0.04),
        {"loss_type": "cispo", "clip_high": 1.2},
    ),
    "rloo": (rl(algorithm="rloo"), {"loss_type": "rloo"}),
    "rloo-kl": (rl(algorithm="rloo", kl=0.1, clip_high=0.05, clip_low=0.05), {"loss_type": "rloo"}),
}
SETTINGS |= {
    f"{kind} {level} {low}": (
        rl(
            correction=kind,
            correction_level=level,
            correction_cap=1.3,
            correction_floor=low,
            kl=kl,
            minibatches=2,
        ),
        {"loss_type": "dapo", "correction": [f"{level}_{kind}", low or None, 1.3]},
    )
    for kind in ("truncate", "mask")
    for level in ("token", "sequence")
    for low, kl in ((0.0, 0.0), (0.8, 0.04))
}
CASES = {
    name: make_case(seed, config, **theirs) for seed, (name, (config, theirs)) in enumerate(SETTINGS.items())
}


@pytest.fixture(scope="module")
def theirs() -> dict[str, dict[str, Any]]:
    asked = json.dumps(list(CASES.values()))
    said = run_peer("trl", Path(__file__).with_name("_trl_policy_losses.py"), asked=asked)
    return dict(zip(CASES, json.loads(said.splitlines()[-1]), strict=True))


def advantages_of(config: RlConfig, case: dict[str, Any]) -> list[float]:
    """The loss's own, but where TRL makes them of rewards on the way."""
    if config.advantage == "group":
        return list(case["advantages"])
    costs = [divergences(*pair, "k1") for pair in zip(case["old"], case["reference"], strict=True)]
    masks = [[bool(x) for x in row] for row in case["mask"]]
    rewards = np.array(case["rewards"]).reshape(PROMPTS, SAMPLES)
    found = token_advantages(config, rewards, masks, kl=config.kl, divergences=costs)
    return [float(row[0]) for row in found.advantages]


def ours(config: RlConfig, case: dict[str, Any]) -> dict[str, Any]:
    weights = token_weights(case["lengths"], config.aggregate, LONGEST)
    advantages = advantages_of(config, case)
    sampled = {"sampler_logprobs": case["old"]}
    if config.needs_old and config.correction != "none":
        sampled = {"sampler_logprobs": case["sampled"], "old_logprobs": case["old"]}
    branches = []
    for i, length in enumerate(case["lengths"]):
        columns = {
            **{name: table[i][:length] for name, table in sampled.items()},
            "reference_logprobs": case["reference"][i][:length],
            "advantages": [advantages[i]] * length,
            "at": [i * LONGEST + t for t in range(length)],
        }
        branches.append(Document([i] * length, [weights[i]] * length, columns))
    tables = torch.tensor([case["logprobs"], case["entropies"]], dtype=torch.float64, requires_grad=True)
    loss, rows = policy_loss(config), pack([Tree([1, 1], branches)], 16)
    assert len(rows) > 1
    valid = sum(row.valid for row in rows)
    total, sums = torch.zeros((), dtype=torch.float64), dict[str, float]()
    for row in rows:
        columns = {name: torch.from_numpy(column) for name, column in row.columns.items()}
        logprobs, entropy = tables.flatten(1)[:, columns.pop("at").long()]
        batch = Predictions(logprobs, torch.from_numpy(row.weights), columns, row.documents, entropy=entropy)
        output = loss(batch)
        total = total + output.total / valid
        for name, value in output.sums.items():
            sums[name] = sums.get(name, 0.0) + float(value) / valid
    total.backward()
    assert tables.grad is not None
    return {"loss": total.item(), "gradient": tables.grad.tolist(), "advantages": advantages, "sums": sums}


@pytest.mark.parametrize("name", CASES)
def test_losses_of_policies_are_trls(name: str, theirs: dict[str, dict[str, Any]]) -> None:
    config, case, peer = SETTINGS[name][0], CASES[name], theirs[name]
    own = ours(config, case)
    assert own["loss"] == pytest.approx(peer["loss"], rel=1e-5, abs=1e-7)
    torch.testing.assert_close(
        torch.tensor(own["gradient"]), torch.tensor(peer["gradient"]), rtol=1e-4, atol=1e-7
    )
    if peer["advantages"]:
        assert own["advantages"] == pytest.approx(peer["advantages"])
    said = peer["metrics"]
    if config.ratio == "token" and config.surrogate == "clip":
        assert own["sums"]["clip_share_low"] == pytest.approx(said["clip_ratio/low_mean"], abs=1e-6)
        assert own["sums"]["clip_share_high"] == pytest.approx(said["clip_ratio/high_mean"], abs=1e-6)
        assert own["sums"]["clip_share"] > 0
    if config.surrogate == "cispo":
        assert own["sums"]["clip_share_high"] == pytest.approx(said["cispo_clip_ratio"], abs=1e-6)
    if config.kl and config.kl_in == "loss" and not config.kl_unbiased:
        assert own["sums"]["reference_kl"] == pytest.approx(said["kl"], rel=1e-5)
    if config.entropy:
        assert own["sums"]["entropy"] == pytest.approx(said["entropy"], rel=1e-6)


@pytest.mark.parametrize("name", ["gspo", "rloo-kl", "cispo, clipped"])
def test_the_numbers_are_such_that_some_ratio_is_clipped(name: str) -> None:
    own = ours(SETTINGS[name][0], CASES[name])
    assert own["sums"]["clip_share"] > 0
