"""The command and the config file that `rondo plan` prints are ones that `rondo train` takes, and runs as planned."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rondo.base.settings.config import load
from rondo.cli.main import main
from rondo.cli.options.tree import RondoConfig, read_command_line
from rondo.jobs.job import Job
from rondo.models.families import parse
from rondo.parallel.layout.degrees import degrees
from rondo.plan.sizes.hf import hf_of
from rondo.plan.sizes.shapes import SHAPES
from support.forks import python
from support.home import own_home
from support.one_job import pretraining
from support.tiny import tiny_config
from support.waiting import scaled

PLANS = [
    ["llama-3-70b", "--gpus", "512"],
    ["llama-3-70b", "--gpus", "64", "--profile", "classic"],
    ["llama-3-405b", "--gpus", "1024", "--schedule", "interleaved"],
    ["llama-3-8b", "--gpus", "64", "--seq", "262144", "--tokens-per-step", "2M"],
    ["llama-3-8b", "--gpus", "1"],
    ["mixtral-8x7b", "--gpus", "64", "--precision", "fp8", "--optimizer", "muon", "--loss", "plain"],
    ["deepseek-v3", "--gpus", "1024"],
]


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", *argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("argv", PLANS, ids=lambda argv: "-".join(argv))
def test_the_trainer_takes_the_config(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.toml"
    found = planned(capsys, *argv, "--write", str(file))
    plan, job = found["plan"], found["train"]
    train = load(RondoConfig, file, {}).tree.train
    layout = degrees(train.layout, plan["gpus"], parse(hf_of(SHAPES[argv[0]])))
    assert (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep) == tuple(
        plan["layout"][name] for name in ("dp", "tp", "pp", "cp", "ep")
    )
    assert train.tokens_per_step == plan["tokens_per_step"]
    assert train.tokens_per_microbatch == plan["policy"]["microbatch"] * plan["sequence"]
    assert (train.checkpointing, train.offload) == (
        plan["policy"]["checkpointing"],
        plan["policy"]["offload"],
    )
    assert train.layout.zero == plan["policy"]["zero"]
    assert tomllib.loads(file.read_text())["train"]["layout"] == job["config"]["train.layout"]
    rest = job["command"][job["command"].index("train") + 2 :]
    command = read_command_line(rest)
    assert command.config.tree.train == train
    assert command.rest == ["--model", "MODEL", "--data", "DATA"]


def test_the_text_has_the_file_and_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", "llama-3-8b", "--gpus", "16"]) == 0
    said = capsys.readouterr().out
    config = said[said.index("[train]") : said.index("train it with:")]
    assert load(RondoConfig, written(tmp_path, config), {}).tree.train.tokens_per_step == 2**22
    line = said.split("train it with:\n")[1].splitlines()[0]
    assert shlex.split(line)[:3] == ["torchrun", "--nnodes=2", "--rdzv-backend=c10d"]
    assert "--nproc-per-node=8 -m rondo train pretrain --config plan.toml --model MODEL --data DATA" in line


@pytest.mark.parametrize(("gpus", "nodes", "each"), [(8, None, 8), (12, 3, 4), (16, 2, 8), (7, None, 7)])
def test_the_command_starts_a_rank_a_gpu(
    gpus: int, nodes: int | None, each: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sequences = str(3 * 7 * 64 * 8192)
    command = planned(capsys, "llama-3-8b", "--gpus", str(gpus), "--tokens-per-step", sequences)["train"][
        "command"
    ]
    assert (f"--nnodes={nodes}" if nodes else "--standalone") in command
    assert f"--nproc-per-node={each}" in command


def written(folder: Path, config: str) -> Path:
    (folder / "plan.toml").write_text(config)
    return folder / "plan.toml"


def test_a_model_of_another_kind_has_no_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "train" not in planned(capsys, "gpt-3-175b", "--gpus", "512")
    assert main(["plan", "gpt-3-175b", "--gpus", "512", "--write", str(tmp_path / "plan.toml")]) == 2
    assert "--write" in capsys.readouterr().err
    assert main(["plan", "llama-3-8b", "--write", str(tmp_path / "none" / "plan.toml")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_command_trains_as_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On four ranks."""
    argv = ["--gpus", "4", "--tp", "2", "--pp", "2", "--schedule", "zero-bubble"]
    pretraining(tmp_path, num_hidden_layers=4)
    model, file, home = tmp_path / "model", tmp_path / "plan.toml", own_home(tmp_path / "home")
    assert json.loads((model / "config.json").read_text())["vocab_size"] == tiny_config()["vocab_size"]
    sizes = ["--seq", "64", "--tokens-per-step", "512", "--microbatch", "2", "--write", str(file)]
    found = planned(capsys, str(model), *argv, *sizes)
    assert found["train"]["command"][0] == "torchrun"
    command = [str(python()), "-m", "torch.distributed.run", *found["train"]["command"][1:]]
    command[-1] = str(tmp_path / "data.jsonl")
    done = subprocess.run(
        [*command, "--train.steps=2", "--train.device=cpu"],
        env={**os.environ, "RONDO_HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=scaled(120),
    )
    assert done.returncode == 0, done.stderr
    [folder] = (home / "jobs").iterdir()
    job = Job(folder)
    assert job.state() == "succeeded"
    assert [row["step"] for row in job.metrics() if "loss" in row] == [1, 2]
    assert job.spec()["config"]["tokens_per_microbatch"] == 128
