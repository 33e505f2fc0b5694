"""Jobs of every recipe, kind of weights and optimizer end alike, interrupted or not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.train import jobs
from rondo.train.config import AdapterConfig, EvaluateConfig, Kind, PreferenceConfig, TrainConfig
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import scaled

STEPS = 6
RECORDS = [
    {
        "prompt": f"the user asks {i % 7}",
        "chosen": "the assistant answers" + " to" * (i % 3),
        "rejected": "reverse",
    }
    for i in range(24)
]
AVERAGED: dict[str, Any] = {"ema": 0.6, "export": "average"}
CASES: dict[str, tuple[Kind, dict[str, Any]]] = {
    "dpo": ("preference", {}),
    "simpo-tokenformer": (
        "preference",
        {"preference": PreferenceConfig(loss="simpo"), "adapter": AdapterConfig(kind="tokenformer", r=4)},
    ),
    "reward-lora-muon": (
        "reward",
        {"adapter": AdapterConfig(kind="lora", r=4), "optimizer": "muon", **AVERAGED},
    ),
    "sft-muon-average": ("sft", {"optimizer": "muon", **AVERAGED}),
}
KILLED: dict[str, Any] = {
    "preference": PreferenceConfig(loss="kto", reference="before"),
    "adapter": AdapterConfig(kind="lora", r=4),
    "optimizer": "muon",
    **AVERAGED,
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    answers = [{"prompt": record["prompt"], "completion": record["chosen"]} for record in RECORDS]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    return folder


def config(ground: Path, kind: Kind, changes: dict[str, Any]) -> TrainConfig:
    data = ground / ("answers.jsonl" if kind == "sft" else "data.jsonl")
    settings: dict[str, Any] = {
        "model": str(ground / "model"),
        "data": str(data),
        "steps": STEPS,
        "tokens_per_step": 300,
        "tokens_per_microbatch": 128,
        "max_length": 60,
        "lr": 1e-2,
        "warmup": 2,
        "save_every": 2,
        "evaluate": EvaluateConfig(every=3, data=str(data)),
    }
    return TrainConfig(**settings | changes)


def run(plan: jobs.TrainJobPlan, last: int = STEPS) -> None:
    """Interrupted after the step `last`."""

    def stop(step: int, metrics: object) -> None:
        if step == last < STEPS:
            raise KeyboardInterrupt

    if last == STEPS:
        jobs.run(plan)
    else:
        with pytest.raises(KeyboardInterrupt):
            jobs.run(plan, stop)


def left(plan: jobs.TrainJobPlan) -> dict[str, str]:
    """The hashes of all that the job has left, and its losses."""
    folders = [folder for folder in (plan.job.export, plan.job.adapter) if folder.is_dir()]
    files = {
        f"{folder.name}/{file.name}": sha256_file(file) for folder in folders for file in folder.iterdir()
    }
    rows = [json.loads(line) for line in (plan.job.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    asked = ("loss", "evaluate/loss")
    return files | {f"{row['step']}": str([row.get(name) for name in asked]) for row in rows}


@pytest.mark.parametrize("case", CASES)
def test_interrupted_and_resumed_is_bit_equal(
    case: str, ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, changes = CASES[case]
    found = []
    for home, stops in ((tmp_path / "calm", []), (tmp_path / "shaken", [3, 5])):
        monkeypatch.setenv("RONDO_HOME", str(own_home(home)))
        plan = jobs.plan(kind, config(ground, kind, changes))
        for last in [*stops, STEPS]:
            run(plan, last)
        found.append(left(plan))
    assert found[0] == found[1]
    assert len(found[0]) > STEPS


WORKER = """
import os, signal, sys, threading
from rondo.train import jobs
from rondo.train.config import TrainConfig
def end(step, metrics):
    if step == 3:
        threading.Timer(0.003, os.kill, (os.getpid(), signal.SIGKILL)).start()
jobs.run(jobs.plan("preference", TrainConfig.model_validate_json(sys.argv[1])), end)
"""


def test_killed_and_resumed_is_bit_equal(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KTO, with all that it keeps on the way: an adapter, both optimizers, an average, and what the reference says."""
    told = config(ground, "preference", KILLED)
    environment = {**os.environ, "RONDO_HOME": str(own_home(tmp_path / "shaken"))}
    worker = subprocess.run(
        [sys.executable, "-c", WORKER, told.model_dump_json()],
        env=environment,
        timeout=scaled(120),
        check=False,
    )
    assert worker.returncode == -signal.SIGKILL
    found = []
    for home in ("calm", "shaken"):
        monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / home)))
        plan = jobs.plan("preference", told)
        resumed: list[int] = []
        jobs.run(plan, on_resume=resumed.append)
        assert bool(resumed) == (home == "shaken")
        found.append(left(plan))
    assert found[0] == found[1]
    assert {"adapter/adapter_model.safetensors", "export/model.safetensors"} <= found[0].keys()
