"""`--emit`: jobs as files for other schedulers."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rondo.base.errors import ConfigError
from rondo.cli.main import main
from support.kubernetes import problems

SFT = ["train", "sft", "--model", "demo", "--data", "it's.jsonl", "--lora", "--lr", "2e-4", "--emit"]


def emit(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("format", ["kubernetes", "jobset"])
def test_manifests(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "2", "--gpus", "8", "--time-limit", "60", "--gateway.jobs.kubernetes.queue=lab"]
    found: dict[str, Any] = yaml.safe_load(emit(capsys, *SFT, format, *options))
    assert problems(found) == []
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lab"
    assert "--train.lr=0.0002" in str(found)


def test_a_batch_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = emit(capsys, *SFT, "slurm", "--nodes", "2", "--gpus", "8", "--name", "mine")
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["sh", "-n", str(tmp_path / "job.sh")], check=True)
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --gres=gpu:4\n" in script
    assert "--train.name=mine" in script


def test_a_task_of_skypilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.jsonl").write_text("{}\n")
    rl = [
        "rl",
        "--model",
        "demo",
        "--task",
        "task.jsonl",
        "--emit",
        "skypilot",
        "--gpus",
        "2",
        "--memory",
        "3000",
    ]
    with pytest.raises(ConfigError, match="--gpu-type"):
        raise_of(rl)
    task = yaml.safe_load(emit(capsys, *rl, "--gpu-type", "H100"))
    assert task["resources"] == {"cpus": "1+", "memory": "3+", "accelerators": "H100:2"}
    assert task["file_mounts"] == {"/rondo-inputs/task.jsonl": str(tmp_path / "task.jsonl")}
    assert task["run"] == "python3 -m rondo.cli rl --rl.model=demo --rl.task=/rondo-inputs/task.jsonl\n"
    many = yaml.safe_load(emit(capsys, *SFT, "skypilot", "--nodes", "2"))
    assert many["num_nodes"] == 2
    assert '--node-rank="$SKYPILOT_NODE_RANK"' in many["run"]


def test_data_of_equal_names_are_copied_to_skypilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.jsonl").write_text("{}\n")
    data = [
        "--data",
        "x/data.jsonl",
        "--data",
        "y/data.jsonl",
        "--data",
        "x/data.jsonl",
        "--data",
        "hub/name",
    ]
    many = yaml.safe_load(emit(capsys, "train", "sft", "--model", "demo", *data, "--emit", "skypilot"))
    assert many["file_mounts"] == {
        "/rondo-inputs/data.jsonl": str(tmp_path / "x/data.jsonl"),
        "/rondo-inputs/2/data.jsonl": str(tmp_path / "y/data.jsonl"),
    }
    first, second = "/rondo-inputs/data.jsonl", "/rondo-inputs/2/data.jsonl"
    assert f"--train.data={json.dumps([first, second, first, 'hub/name'])}" in shlex.split(many["run"])
    one = yaml.safe_load(emit(capsys, "train", "sft", "--model", "demo", *data[:2], "--emit", "skypilot"))
    assert one["file_mounts"] == {first: str(tmp_path / "x/data.jsonl")}


def test_learner_and_engines_are_a_job_group_of_skypilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy").mkdir()
    engines = ["--rl.ray.engines=2", "--rl.ray.gpus=1", "--rl.ray.serve=--engine.dtype=bfloat16"]
    rl = ["rl", "--model", "policy", "--task", "add", "--emit", "skypilot", "--gpu-type", "H100", *engines]
    header, learner, engine = yaml.safe_load_all(emit(capsys, *rl, "--name", "mine"))
    name = header["name"]
    assert header == {"name": name, "execution": "parallel", "primary_tasks": ["learner"]}
    assert name.startswith("rondo-mine-")
    assert (learner["name"], engine["name"], engine["num_nodes"]) == ("learner", "engine", 2)
    assert learner["resources"]["accelerators"] == engine["resources"]["accelerators"] == "H100:1"
    assert engine["file_mounts"]["/rondo-inputs/policy"] == str(tmp_path / "policy")
    bucket = {"name": f"{name}-weights", "mode": "MOUNT"}
    assert engine["file_mounts"]["/rondo-weights"] == learner["file_mounts"]["/rondo-weights"] == bucket
    assert "serve /rondo-inputs/policy --host=0.0.0.0 --port=8001" in engine["run"]
    assert "--engine.dtype=bfloat16" in engine["run"]
    assert f"http://engine-1.{name}:8001" in learner["run"]
    assert "rl.ray" not in learner["run"]
    subprocess.run(["sh", "-n"], input=learner["run"] + engine["run"], text=True, check=True)


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="describes a job of --submit or --emit"):
        raise_of([*SFT[:-1], "--gpus", "2"])
    with pytest.raises(ConfigError, match="invalid choice"):
        raise_of([*SFT, "nomad"])


def raise_of(argv: list[str]) -> None:
    """Runs a verb without the line that reports its error."""
    from rondo.cli.commands import rl, train

    (train if argv[0] == "train" else rl).run(argv[1:])
