"""The screen before a job starts, and the remaining time after its first steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from rondo.cli.main import main
from rondo.cli.view.start import MEASURED_STEPS, with_time_left
from support.tiny import tiny_model, tiny_tokenizer

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    models.save(tiny_model(**WIDE), tmp_path / "base")
    tiny_tokenizer().save(tmp_path / "base")
    records = [json.dumps({"prompt": f"the user asks {i}", "completion": f" {i}"}) for i in range(40)]
    (tmp_path / "data.jsonl").write_text("\n".join(records))
    return tmp_path


def train(folder: Path, capsys: Any, *more: str) -> str:
    command = ["train", "sft", "--model", str(folder / "base"), "--data", str(folder / "data.jsonl")]
    command += ["--train.max_length=64", "--train.steps=2", "--train.tokens_per_step=200"]
    assert main([*command, *more]) == 0
    return str(capsys.readouterr().err)


def test_a_job_is_described_before_it_starts(folder: Path, capsys: Any):
    said = train(folder, capsys, "--train.adapter.kind=lora", "--train.adapter.r=4")
    rows = {line[:10].strip(): line[10:] for line in said.splitlines()}
    assert rows["trained"].startswith("8.19K parameters (8.07%): LoRA of rank 4")
    assert "tokens" in rows["data"]
    assert rows["steps"] == "2 of up to 200 tokens"
    assert rows["time"] == "shown after the first steps"
    assert rows["memory"].endswith("by the planner")
    assert rows["device"].startswith("cpu (")
    assert str(folder / "home/jobs") in rows["output"]
    assert said.index("output") < said.index("step 2 of 2")
    assert "planner" not in rows, "a small model has the default settings"
    assert "trained" not in train(folder, capsys, "--train.adapter.kind=lora", "--train.adapter.r=4"), (
        "done already"
    )


def test_an_rl_job_is_described(folder: Path, capsys: Any):
    command = ["rl", "--model", str(folder / "base"), "--rl.steps=1", "--rl.prompts_per_step=2"]
    assert main([*command, "--rl.samples_per_prompt=2", "--rl.eval_prompts=2", "--rl.max_tokens=4"]) == 0
    said = capsys.readouterr().err
    assert "trained   all parameters" in said
    assert "steps     1 of 4 samples, 2 for each prompt" in said


def test_quantized_rl_is_an_error(folder: Path, capsys: Any):
    flags = ["--rl.adapter.kind=lora", "--rl.adapter.quantize_base=nf4"]
    assert main(["rl", "--model", str(folder / "base"), *flags]) == 2
    assert "set rl.adapter.quantize_base=none" in capsys.readouterr().err


def test_the_remaining_time_is_measured_once(capsys: Any):
    seen: list[int] = []
    report = with_time_left(lambda step, metrics: seen.append(step), 50)
    for step in range(1, 20):
        report(step, {})
    assert seen == list(range(1, 20))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"time      less than a minute left, measured over {MEASURED_STEPS} steps"]
