"""The learner over Megatron-Core beside the native one: run by pytest in an environment that has Megatron-Core."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest
import torch

from rondo import models
from rondo.models.files.mapping import to_hf
from rondo.train import jobs
from rondo.train.config import Kind, TrainConfig
from rondo.train.learner.learner import Learner
from support.home import own_home
from support.launch import launch
from support.megatron import CLIPPED, MODELS, Outcome, Share, alone, model_of, on_ranks, resumed
from support.tiny import tiny_model, tiny_tokenizer

TOLERANCE = 2e-6
"""Of weights and losses, in fp32; log-probabilities may differ by ten times as much."""
LAYOUTS = ("one", "tp2", "dp2")
PLACES = {"one": "one/0", "tp2": "two/0", "dp2": "two/1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron")


@pytest.fixture(scope="module")
def native(folder: Path) -> dict[str, dict[str, Outcome]]:
    return {name: alone(name, folder / "native" / name) for name in MODELS}


@pytest.fixture(scope="module")
def ranks(folder: Path, native: object) -> dict[str, list[dict[str, dict[str, Outcome]]]]:
    """What the ranks of each layout have found."""
    saved = folder / "native"
    one = on_ranks([{}], saved, folder / "one")
    two = launch(on_ranks, 2, [{"tp": 2}, {"dp": 2, "zero": 0}], saved, folder / "two", backend=None)
    return {"one": one, "tp2": [rank[0] for rank in two], "dp2": [rank[1] for rank in two]}


@pytest.mark.parametrize("what", ["before", "one", "two", "resumed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_native_learner(
    name: str,
    layout: str,
    what: str,
    native: dict[str, dict[str, Outcome]],
    ranks: dict[str, list[dict[str, dict[str, Outcome]]]],
) -> None:
    """Log-probabilities, losses and gradient norms, the gradient, weights after steps, and after a checkpoint of the
    native learner's."""
    wanted = native[name][what]
    for rank, found in enumerate(ranks[layout]):
        ours = found[name][what]
        rows = wanted.logprobs[rank::2] if layout == "dp2" else wanted.logprobs
        for mine, its in zip(ours.logprobs, rows, strict=True):
            torch.testing.assert_close(mine, its, atol=10 * TOLERANCE, rtol=0)
        for mine, its in zip(ours.metrics, wanted.metrics, strict=True):
            assert mine == pytest.approx(its, abs=10 * TOLERANCE, rel=1e-5)
        assert list(ours.weights) == list(wanted.weights)
        for hf, weight in ours.weights.items():
            torch.testing.assert_close(weight, wanted.weights[hf], atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_its_files_are_the_native_ones(
    name: str,
    layout: str,
    folder: Path,
    native: dict[str, dict[str, Outcome]],
    ranks: dict[str, list[dict[str, dict[str, Outcome]]]],
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
