"""Requests of OpenAI's fine-tuning API as settings and files of jobs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import InvalidRequest
from rondo.gateway.training.fine_tuning import NewFineTuningJob, method_of, result_name, settings_of
from rondo.gateway.training.inputs import pairs_of, task_of


def test_hyperparameters_become_settings() -> None:
    def settings(records: int = 100, **fields: Any) -> dict[str, Any]:
        wanted = NewFineTuningJob.model_validate({"model": "org/base", "training_file": "f"} | fields)
        return settings_of(wanted, method_of(wanted), records)

    assert settings() == {"model": "org/base", "adapter.kind": "lora", "seed": 42, "epochs": 3}
    told = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 2}
    assert settings(hyperparameters=told)["examples_per_step"] == 4
    assert settings(hyperparameters=told)["lr"] == pytest.approx(6e-4)
    dpo = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}
    assert settings(method=dpo)["preference.beta"] == 0.2
    rl = {"type": "reinforcement", "reinforcement": {"grader": {}, "hyperparameters": {"n_epochs": 2}}}
    assert settings(10, method=rl) | {"grader": 0} == {
        "model": "org/base",
        "adapter.kind": "lora",
        "seed": 42,
        "grader": 0,
        "prompts_per_step": 10,
        "steps": 2,
    }
    named = NewFineTuningJob(model="org/base", training_file="f", suffix="x")
    assert result_name(named) == "ft:base:rondo:x:{id}"


def test_pairs_in_the_form_of_openai_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    good, bad = [{"role": "assistant", "content": "yes"}], [{"role": "assistant", "content": "no"}]
    question = [{"role": "user", "content": "?"}]
    file = tmp_path / "a.jsonl"
    pair = {"input": {"messages": question}, "preferred_output": good, "non_preferred_output": bad}
    file.write_text(json.dumps(pair) + "\n")
    path, _ = pairs_of(file, "training_file")
    assert json.loads(path.read_text()) == {"messages": question, "chosen": good, "rejected": bad}


def test_records_of_reinforcement_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(10)))
    path, _, records = task_of(file, None)
    splits = [json.loads(line)["split"] for line in path.read_text().splitlines()]
    assert (records, splits) == (9, ["train"] * 7 + ["held_out"] + ["train"] * 2)
    file.write_text('{"prompt": "x"}\n')
    with pytest.raises(InvalidRequest, match="single record"):
        task_of(file, None)
    file.write_text("[1]\n")
    with pytest.raises(InvalidRequest, match="Line 1"):
        asyncio.run(asyncio.to_thread(task_of, file, None))
