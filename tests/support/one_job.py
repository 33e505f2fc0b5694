"""A short job of pretraining for ranks that a launcher starts, and whether it is what one process makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.cli.main import main
from rondo.jobs.job import Job
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 6


def pretraining(folder: Path, **changes: Any) -> list[str]:
    """What comes after `rondo`, with a model and data in `folder`. `changes` are those of the model's config."""
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(**changes), model)
        tiny_tokenizer().save(model)
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers {i * i}"}) for i in range(50)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    found = ["train", "pretrain", "--model", str(folder / "model"), "--data", str(folder / "data.jsonl")]
    found += ["--train.tokens_per_step=400", "--train.tokens_per_microbatch=128", "--train.max_length=64"]
    return [*found, f"--train.steps={STEPS}", "--train.eps=1e-3"]


def is_the_job_of_one(
    said: str, home: Path, alone: Path, train: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two ranks have `said` on their standard output, and left in `home`."""
    monkeypatch.setenv("RONDO_HOME", str(own_home(alone)))
    assert main(train) == 0
    found: list[tuple[str, list[float], dict[str, torch.Tensor]]] = []
    for each in (home, alone):
        monkeypatch.setenv("RONDO_HOME", str(each))
        (job,) = Job.all()
        losses = [row["loss"] for row in job.metrics()]
        found.append((job.name, losses, load_file(job.export / "model.safetensors")))
        if each == home:
            assert said.split() == [str(job.export)], "the first rank alone speaks"
            files = {path.name for path in Path(job.checkpoints, f"step_{STEPS}").glob("*.distcp")}
            assert files == {"__0_0.distcp", "__1_0.distcp"}
    (ours, our_losses, our_weights), (theirs, their_losses, their_weights) = found
    assert ours == theirs
    assert our_losses == pytest.approx(their_losses, abs=1e-5)
    assert our_weights.keys() == their_weights.keys()
    for name, weight in their_weights.items():
        torch.testing.assert_close(our_weights[name], weight, atol=1e-6, rtol=0, msg=name)
