"""Epochs of SFT, held-out records, and what they make of a job's specification."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo import models
from rondo.base.errors import ConfigError, InvalidRequest
from rondo.base.storage.files import atomic_dir
from rondo.data.batching.sampler import DocumentSampler, DocumentSpans, Position
from rondo.data.preparation.prepare import PrepareRequest, prepare
from rondo.train import jobs
from rondo.train.config import TrainConfig
from rondo.train.recipes import answers, data
from rondo.train.recipes.epochs import epoch_tokens, step_size, with_steps
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

RECORDS = [{"instruction": f"the user asks {i}", "output": f"the assistant answers {i}"} for i in range(40)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    (folder / "data.json").write_text(json.dumps(RECORDS))
    pairs = [{"prompt": f"ask {i}", "chosen": "yes", "rejected": "no"} for i in range(20)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))


def config(ground: Path, **changes: Any) -> TrainConfig:
    sizes = {"tokens_per_microbatch": 512, "max_length": 256, "lr": 1e-2}
    return TrainConfig(model=str(ground / "model"), data=str(ground / "data.json"), **sizes | changes)


@settings(max_examples=50)
@given(
    st.lists(st.integers(2, 60), min_size=1, max_size=80),
    st.sampled_from([1.0, 2.0, 3.0]),
    st.integers(10, 200),
)
def test_the_steps_draw_the_epochs(sizes: list[int], epochs: float, tokens_per_step: int) -> None:
    lengths = [np.asarray(sizes)]
    found = with_steps(TrainConfig(tokens_per_step=tokens_per_step), epochs, lengths, [1.0])
    sampler, position = DocumentSampler([DocumentSpans(lengths[0])], [1.0], 0, tokens_per_step), Position()
    for _ in range(found.steps):
        _, position = sampler.take(position)
    step = max(tokens_per_step, max(sizes)) / epoch_tokens(lengths)
    assert sampler.epochs(position) == pytest.approx(epochs, abs=0.25 * epochs + 2 * step)
    assert found.tokens_per_step == tokens_per_step


def test_a_small_data_set_has_small_steps() -> None:
    assert step_size(10_000_000, 50_000, 16384) == 16384
    assert step_size(100_000, 1000, 16384) == 3125
    assert step_size(1000, 50, 16384) == 160
    assert step_size(100, 2, 16384) == 100
    lengths = [np.full(1000, 101)]
    found = with_steps(TrainConfig(), 3.0, lengths, [1.0])
    assert (found.tokens_per_step, found.steps, found.warmup) == (3125, 97, 10)
    few = with_steps(TrainConfig(), 1.0, [np.full(8, 11)], [1.0])
    two = with_steps(TrainConfig(examples_per_step=2), 1.0, [np.full(8, 11)], [1.0])
    assert (two.steps, two.tokens_per_step, two.examples_per_step) == (4, 20, None)
    assert (few.tokens_per_step, few.steps, few.warmup) == (80, 1, 1)


def test_sft_trains_three_epochs_and_holds_out_a_tenth(ground: Path) -> None:
    plan = jobs.plan("sft", config(ground))
    assert plan.epochs == 3
    assert len(plan.opened.training[0].records) == 36
    assert len(plan.opened.held_out[0].records) == 4
    seen: list[dict[str, float]] = []
    jobs.run(plan, lambda step, metrics: seen.append(dict(metrics)))
    assert len(seen) == plan.config.steps
    assert seen[-1]["epochs"] == pytest.approx(3, abs=0.1)
    assert seen[-1]["evaluate/loss"] > 0
    assert seen[0]["token_accuracy"] < seen[-1]["token_accuracy"] <= 1
    assert 0 <= seen[-1]["evaluate/token_accuracy"] <= 1


def test_steps_and_epochs_of_the_same_number_are_the_same_job(ground: Path) -> None:
    plan = jobs.plan("sft", config(ground))
    found = plan.config
    same = {"steps": found.steps, "tokens_per_step": found.tokens_per_step, "warmup": found.warmup}
    assert jobs.plan("sft", config(ground, **same)).job == plan.job
    assert jobs.plan("sft", config(ground, epochs=3)).job == plan.job
    assert jobs.plan("sft", config(ground, preview=0)).job == plan.job
    assert jobs.plan("sft", config(ground, epochs=2)).job != plan.job
    assert jobs.plan("sft", config(ground, evaluate={"held_out": 0})).job != plan.job
    assert jobs.plan("sft", config(ground, over_long="skip")).job != plan.job


@pytest.mark.parametrize("kind", ["preference", "reward", "pretrain"])
def test_the_other_recipes_count_epochs_on_request(ground: Path, kind: Any) -> None:
    told = config(ground, epochs=2, tokens_per_step=64).model_copy(
        update={"data": str(ground / ("data.json" if kind == "pretrain" else "pairs.jsonl"))}
    )
    plan = jobs.plan(kind, told)
    seen: list[dict[str, float]] = []
    jobs.run(plan, lambda step, metrics: seen.append(dict(metrics)))
    assert seen[-1]["epochs"] == pytest.approx(
        2, abs=0.5
    )  # spans after the first missing one are not counted
    unset = told.model_copy(update={"epochs": None})
    assert jobs.plan(kind, unset).config.steps == 100
    assert not plan.opened.held_out


def test_an_interrupted_job_of_epochs_ends_like_one_that_was_not(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, stop_at in (("calm", 0), ("shaken", 3)):
        monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / name)))

        def stop(step: int, _: object, at: int = stop_at) -> None:
            if step == at:
                raise KeyboardInterrupt

        told = config(ground, epochs=1, save_every=2)
        if stop_at:
            with pytest.raises(KeyboardInterrupt):
                jobs.run(jobs.plan("sft", told), stop)
        result = jobs.run(jobs.plan("sft", told))
        rows = [json.loads(line) for line in (result.parent / "metrics.jsonl").read_text().splitlines()]
        found.append(([row["loss"] for row in rows], (result / "model.safetensors").read_bytes()))
    assert found[0] == found[1]


def test_settings_that_exclude_each_other(ground: Path) -> None:
    with pytest.raises(ValueError, match="steps and epochs exclude each other"):
        TrainConfig(steps=5, epochs=1)
    with pytest.raises(ValueError, match="data and held_out exclude each other"):
        TrainConfig(evaluate={"data": "x", "held_out": 0.2})
    given = config(ground, evaluate={"data": str(ground / "data.json")})
    opened = data.open_data("sft", given)
    assert len(opened.training[0].records) == len(opened.held_out[0].records) == len(RECORDS)
    shards = PrepareRequest([str(ground / "data.json")], ground / "model", str(ground / "shards"))
    prepare(shards)
    prepared = config(ground, evaluate={"held_out": 0.1}).model_copy(update={"data": str(ground / "shards")})
    with pytest.raises(ConfigError, match="prepared shards cannot be divided"):
        data.open_data("pretrain", prepared)


@pytest.mark.parametrize(
    ("kind", "file", "problem"),
    [
        (
            "preference",
            "data.json",
            r"record 1 \(line 1\): .* use `rondo train sft` \(detected format: Alpaca",
        ),
        ("reward", "data.json", '"chosen" and "rejected", which reward training needs'),
        ("sft", "pairs.jsonl", "line 1: .*use `rondo train preference`"),
    ],
)
def test_records_of_another_recipe_are_rejected(ground: Path, kind: Any, file: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        data.open_data(kind, config(ground).model_copy(update={"data": str(ground / file)}))


def test_data_are_read_without_torch(ground: Path) -> None:
    program = (
        "import sys\nfrom rondo.train.config import TrainConfig\nfrom rondo.train.recipes import data, preview\n"
        "data.open_data('sft', TrainConfig(data=sys.argv[1]))\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(ground / "data.json")], check=True, timeout=300)


@pytest.mark.parametrize(("kind", "loss"), [("preference", "dpo"), ("preference", "kto"), ("reward", "dpo")])
def test_pairs_are_tokenized_once(
    ground: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, loss: Any
) -> None:
    calls: list[object] = []
    real = answers.tokens_of
    monkeypatch.setattr(answers, "tokens_of", lambda *given: (calls.append(given), real(*given))[1])
    told = config(ground, epochs=1, tokens_per_step=64, preference={"loss": loss})
    told = told.model_copy(update={"data": str(ground / "pairs.jsonl")})
    plan = jobs.plan(kind, told)
    counted = len(calls)
    jobs.run(plan)
    assert len(calls) == counted == 2 * len(plan.opened.training[0].records)
