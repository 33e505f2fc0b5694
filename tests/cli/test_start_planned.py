"""A job on a device with little memory: the planner turns it into a QLoRA, which its screen and spec show."""

import json
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from rondo.cli.main import main
from rondo.jobs.job import Job
from rondo.plan.finetune import ROOM, Tuning, memory
from rondo.plan.machine import Device
from rondo.plan.sizes.hf import shape_of
from rondo.train.recipes import defaults
from support.tiny import tiny_config, tiny_model, tiny_tokenizer

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 4}
BATCH = {"tokens": 256, "length": 64, "kind": "cpu"}


def device_for(tuning: Tuning) -> Device:
    """A device with exactly the memory for these settings."""
    need = memory(shape_of(tiny_config(**WIDE), "wide"), tuning).total
    return Device("small CPU", "cpu", (need + 1) / ROOM["cpu"], 2.0**40)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(defaults, "SMALL", 0)
    models.save(tiny_model(**WIDE), tmp_path / "base")
    tiny_tokenizer().save(tmp_path / "base")
    records = [json.dumps({"prompt": f"the user asks {i}", "completion": f" {i}"}) for i in range(40)]
    (tmp_path / "data.jsonl").write_text("\n".join(records))
    found = ["train", "sft", "--model", str(tmp_path / "base"), "--data", str(tmp_path / "data.jsonl")]
    found += ["--train.max_length=64", "--train.steps=2", "--train.tokens_per_step=200", "--train.preview=0"]
    return [*found, "--train.tokens_per_microbatch=256"]


def on(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "device_at_hand", lambda name: device)


def test_qlora_is_chosen_said_and_recorded(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any):
    on(
        device_for(Tuning("qlora", "bfloat16", "bfloat16", checkpointing="full", logits="chunked", **BATCH)),
        monkeypatch,
    )
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "LoRA of rank 16 over 4-bit weights (nf4)" in said
    assert "planner   adapter.kind=lora: full fine-tuning needs 0." in said
    assert "adapter.quantize_base=nf4: LoRA over 16-bit weights needs 0." in said
    assert max(map(len, said[said.index("model ") : said.index("job ")].splitlines())) <= 160
    (job,) = Job.all()
    config = job.spec()["config"]
    assert config["adapter"]["kind"] == "lora"
    assert config["adapter"]["quantize_base"] == "nf4"
    assert (job.export / "config.json").is_file()
    assert main(command) == 0
    assert [each.name for each in Job.all()] == [job.name], "the same machine, the same job"
    written = ["--train.adapter.kind=lora", "--train.adapter.quantize_base=nf4"]
    assert main([*command, *written]) == 0
    assert len(Job.all()) == 1, "the same values, written out"


def test_a_device_with_enough_memory_trains_all_weights(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    on(device_for(Tuning("full", **BATCH)), monkeypatch)
    assert main(command) == 0
    assert "trained   all parameters" in capsys.readouterr().err


def test_too_little_memory_for_anything(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any):
    on(Device("tiny CPU", "cpu", 2.0**28), monkeypatch)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert (
        "does not fit: tiny CPU has 0.2 GiB for a job, and the smallest requirement is 0.5 GiB (QLoRA" in said
    )
    assert not Job.all()
