"""The learner over Megatron-Core beside the native one: run by pytest in an environment that has Megatron-Core."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from rondo import models
from rondo.models.files.mapping import to_hf
from rondo.train import jobs
from rondo.train.config import Kind, TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from rondo.train.megatron.learner import MegatronLearner
from support.home import own_home
from support.launch import launch
from support.megatron import (
    CLIPPED,
    MODELS,
    PLAIN,
    Case,
    Outcome,
    Share,
    alone,
    model_of,
    on_ranks,
    resumed,
    sharded_state,
)
from support.tiny import tiny_model, tiny_tokenizer

TOLERANCE = 2e-6
"""Of weights and losses, in fp32; log-probabilities may differ by ten times as much."""
BF16 = {"precision": "bfloat16"}
ONE: dict[str, Case] = {
    "one": ({}, {}),
    "selective": ({}, {"checkpointing": "selective"}),
    "full": ({}, {"checkpointing": "full"}),
    "bf16": ({}, BF16),
}
TWO: dict[str, Case] = {
    "tp2": ({"tp": 2}, {}),
    "dp2": ({"dp": 2, "zero": 0}, {}),
    "zero1": ({"dp": 2, "zero": 1}, {}),
    "tp2-full": ({"tp": 2}, {"checkpointing": "full"}),
    "pp2": ({"pp": 2}, {}),
    "pp2-full": ({"pp": 2}, {"checkpointing": "full"}),
    "dp2-bf16": ({"dp": 2, "zero": 0}, BF16),
    "zero1-bf16": ({"dp": 2, "zero": 1}, BF16),
    "pp2-bf16": ({"pp": 2}, BF16),
}
FOUR: dict[str, Case] = {"pp2-zero1": ({"pp": 2, "dp": 2, "zero": 1}, {})}
CASES = ONE | TWO | FOUR
EXACT = [name for name, (_, changes) in CASES.items() if "precision" not in changes]
MIXED = [name for name in CASES if name not in EXACT]
PLACES = {
    name: f"{folder}/{i}"
    for folder, cases in {"one": ONE, "two": TWO, "four": FOUR}.items()
    for i, name in enumerate(cases)
}
Ranks = dict[str, list[dict[str, dict[str, Outcome]]]]
"""Of each case: what each rank has found with each model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron")


@pytest.fixture(scope="module")
def native(folder: Path) -> dict[str, dict[str, Outcome]]:
    return {name: alone(name, folder / "native" / name) for name in MODELS}


@pytest.fixture(scope="module")
def ranks(folder: Path, native: object) -> Ranks:
    saved = folder / "native"
    one = on_ranks(list(ONE.values()), saved, folder / "one")
    two = launch(on_ranks, 2, list(TWO.values()), saved, folder / "two", backend=None, seconds=240)
    four = launch(on_ranks, 4, list(FOUR.values()), saved, folder / "four", backend=None, seconds=240)
    return {name: [one[i]] for i, name in enumerate(ONE)} | {
        name: [rank[i] for rank in ranks]
        for cases, ranks in ((TWO, two), (FOUR, four))
        for i, name in enumerate(cases)
    }


def rows_of_rank(layout: str, rank: int, rows: list[Tensor]) -> list[Tensor]:
    """Ranks of the same stage have different rows."""
    dp = CASES[layout][0].get("dp", 1)
    return rows[rank % dp :: dp]


@pytest.mark.parametrize("what", ["before", "one", "two", "resumed"])
@pytest.mark.parametrize("layout", EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_native_learner(
    name: str,
    layout: str,
    what: str,
    native: dict[str, dict[str, Outcome]],
    ranks: Ranks,
) -> None:
    """Log-probabilities, losses and gradient norms, the gradient, weights after steps, and after a checkpoint of the
    native learner's."""
    wanted = native[name][what]
    for rank, found in enumerate(ranks[layout]):
        ours = found[name][what]
        rows = rows_of_rank(layout, rank, wanted.logprobs)
        for mine, its in zip(ours.logprobs, rows, strict=True):
            torch.testing.assert_close(mine, its, atol=10 * TOLERANCE, rtol=0)
        for mine, its in zip(ours.metrics, wanted.metrics, strict=True):
            assert mine == pytest.approx(its, abs=10 * TOLERANCE, rel=1e-5)
        assert list(ours.weights) == list(wanted.weights)
        for hf, weight in ours.weights.items():
            torch.testing.assert_close(weight, wanted.weights[hf], atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("layout", EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_its_files_are_the_native_ones(
    name: str,
    layout: str,
    folder: Path,
    native: dict[str, dict[str, Outcome]],
    ranks: Ranks,
) -> None:
    """The export, to the last bit; and the native learner goes on from its checkpoint."""
    own = folder / PLACES[layout] / name
    exported = dict(to_hf(models.load(own / "export")))
    left = ranks[layout][0][name]["two"].weights
    assert list(exported) == list(left)
    for hf, weight in exported.items():
        assert torch.equal(weight, left[hf]), hf
    ours, wanted = resumed(Share(Learner(model_of(name), CLIPPED)), own), native[name]["resumed"]
    for hf, weight in ours.weights.items():
        torch.testing.assert_close(weight, wanted.weights[hf], atol=TOLERANCE, rtol=1e-5)


@pytest.fixture(scope="module")
def mixed(folder: Path) -> dict[str, dict[str, Outcome]]:
    return {name: alone(name, folder / "mixed" / name, **BF16) for name in MODELS}


@pytest.mark.parametrize("what", ["before", "one", "two", "resumed"])
@pytest.mark.parametrize("layout", ["bf16", "pp2-bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_the_native_learners_up_to_its_rounding(
    name: str, layout: str, what: str, mixed: dict[str, dict[str, Outcome]], ranks: Ranks
) -> None:
    """They round in different places; weights are compared as the modules have them, in bf16."""
    wanted, ours = mixed[name][what], ranks[layout][0][name][what]
    for mine, its in zip(ours.logprobs, wanted.logprobs, strict=True):
        torch.testing.assert_close(mine, its, atol=0.3, rtol=0)
    for got, expected in zip(ours.metrics, wanted.metrics, strict=True):
        assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.1)
        assert got["loss"] == pytest.approx(expected["loss"], rel=0.1)
    for hf, weight in ours.weights.items():
        assert weight.dtype == torch.bfloat16
        its = wanted.weights[hf].float()
        if weight.ndim == 2:
            assert (weight.float() - its).norm() < 0.01 * its.norm(), hf


@pytest.mark.parametrize("what", ["before", "one", "two", "resumed"])
@pytest.mark.parametrize("layout", ["dp2-bf16", "zero1-bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_bf16_on_two_ranks_is_one_process(name: str, layout: str, what: str, ranks: Ranks) -> None:
    """Gradients are summed in fp32. On CPUs with bf16 instructions, a product of torch rounds a row in another way in
    another batch, which changes log-probabilities and gradients by roundings."""
    wanted = ranks["bf16"][0][name][what]
    for rank, found in enumerate(ranks[layout]):
        ours = found[name][what]
        for got, expected in zip(ours.metrics, wanted.metrics, strict=True):
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
        for mine, its in zip(ours.logprobs, rows_of_rank(layout, rank, wanted.logprobs), strict=True):
            torch.testing.assert_close(mine, its, atol=0.3, rtol=0)
        for hf, weight in ours.weights.items():
            its = wanted.weights[hf].float()
            assert (weight.float() - its).norm() <= 2e-3 * its.norm(), hf


@pytest.mark.parametrize("layout", MIXED)
def test_the_export_of_bf16_has_the_fp32_weights(layout: str, folder: Path, ranks: Ranks) -> None:
    left = ranks[layout][0]["qwen3"]["two"].weights
    finer = 0
    for hf, weight in to_hf(models.load(folder / PLACES[layout] / "qwen3" / "export", torch.float32)):
        assert torch.equal(weight.bfloat16(), left[hf])
        finer += int((weight != left[hf].float()).sum())
    assert finer


@pytest.mark.parametrize(
    ("checkpointing", "attentions", "mlps"), [("none", 1, 1), ("selective", 2, 1), ("full", 2, 2)]
)
def test_checkpointing_recomputes(checkpointing: str, attentions: int, mlps: int, ranks: Ranks) -> None:
    """Forward passes of a layer's parts for each row."""
    config = PLAIN.model_copy(update={"checkpointing": checkpointing})
    share = Share(learner := MegatronLearner(model_of("qwen3"), config))
    calls: list[str] = []
    for name, module in learner._part.module.named_modules():
        if name in (attention := "decoder.layers.0.self_attention.core_attention", "decoder.layers.0.mlp"):
            kind = "attention" if name == attention else "mlp"
            module.register_forward_hook(lambda *_, kind=kind: calls.append(kind))
    learner.forward_backward(share.rows(0), cross_entropy)
    rows = len(share.rows(0))
    assert (calls.count("attention"), calls.count("mlp")) == (attentions * rows, mlps * rows)


def test_zero_1_shards_the_optimizers_state() -> None:
    first, second = launch(sharded_state, 2, {"dp": 2, "zero": 1}, backend=None)
    assert first[0] + second[0] == first[1]
    assert abs(first[0] - second[0]) < 0.1 * first[1]


RECORDS: dict[Kind, list[dict[str, str]]] = {
    "pretrain": [{"text": f"the user asks {i} and the assistant answers {i * i}"} for i in range(20)],
    "preference": [
        {"prompt": f"add {i} to 2", "chosen": str(i + 2), "rejected": "the assistant"} for i in range(20)
    ],
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_job_is_the_same_and_may_change_its_learner(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "data.jsonl").open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in RECORDS[kind])
    (tmp_path / "model").mkdir()
    models.save_into(tiny_model(), tmp_path / "model")
    tiny_tokenizer().save(tmp_path / "model")

    def job(learner: Literal["native", "megatron"], home: str, last: int = 3) -> jobs.TrainJobPlan:
        monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / home)))
        config = TrainConfig(
            model=str(tmp_path / "model"),
            data=str(tmp_path / "data.jsonl"),
            learner=learner,
            lr=1e-2,
            eps=1e-3,
            steps=3,
            save_every=1,
            tokens_per_step=200,
            tokens_per_microbatch=128,
            max_length=64,
        )
        plan = jobs.plan(kind, config)

        def stop(step: int, metrics: object) -> None:
            if step == last < 3:
                raise KeyboardInterrupt

        with nullcontext() if last == 3 else pytest.raises(KeyboardInterrupt):
            jobs.run(plan, stop)
        return plan

    wanted = job("native", "native")
    job("megatron", "both", 1)
    job("native", "both", 2)
    ours = job("megatron", "both")
    assert ours.job.path.name == wanted.job.path.name
    exported = dict(to_hf(models.load(ours.job.export)))
    for name, weight in to_hf(models.load(wanted.job.export)):
        torch.testing.assert_close(exported[name], weight, atol=10 * TOLERANCE, rtol=1e-5)
    for mine, its in zip(lines(ours), lines(wanted), strict=True):
        assert mine["loss"] == pytest.approx(its["loss"], abs=10 * TOLERANCE)


def lines(plan: jobs.TrainJobPlan) -> list[dict[str, float]]:
    return [json.loads(line) for line in (plan.job.path / "metrics.jsonl").read_text().splitlines()]
