"""Ranks that Open MPI's own launcher starts: they do the job of one process, and an error is said once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.files import atomic_dir
from rondo.cli.main import main
from rondo.train.job import Job
from support.home import own_home
from support.ports import free_port
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.real

STEPS = 6


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What comes after `rondo`."""
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers {i * i}"}) for i in range(50)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    found = ["train", "pretrain", "--model", str(folder / "model"), "--data", str(folder / "data.jsonl")]
    found += ["--train.tokens_per_step=400", "--train.tokens_per_microbatch=128", "--train.max_length=64"]
    return [*found, f"--train.steps={STEPS}", "--train.eps=1e-3"]


def mpirun(home: Path, ranks: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    told = {"RONDO_HOME": str(own_home(home)), "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "rondo", *arguments],
        env=os.environ | allowed | told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_two_ranks_do_the_job_of_one(
    train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = mpirun(tmp_path / "two", 2, *train)
    assert done.returncode == 0, done.stderr
    found: list[tuple[str, list[float], dict[str, torch.Tensor]]] = []
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "one")))
    assert main(train) == 0
    for home in ("two", "one"):
        monkeypatch.setenv("RONDO_HOME", str(tmp_path / home))
        (job,) = Job.all()
        losses = [row["loss"] for row in job.metrics()]
        found.append((job.name, losses, load_file(job.export / "model.safetensors")))
        if home == "two":
            assert done.stdout.split() == [str(job.export)], "the first rank alone speaks"
            files = {path.name for path in Path(job.checkpoints, f"step_{STEPS}").glob("*.distcp")}
            assert files == {"__0_0.distcp", "__1_0.distcp"}
    (ours, our_losses, our_weights), (theirs, their_losses, their_weights) = found
    assert ours == theirs
    assert our_losses == pytest.approx(their_losses, abs=1e-5)
    assert our_weights.keys() == their_weights.keys()
    for name, weight in their_weights.items():
        torch.testing.assert_close(our_weights[name], weight, atol=1e-6, rtol=0, msg=name)


def test_what_is_wrong_ends_all_ranks_and_is_said_once(train: list[str], tmp_path: Path) -> None:
    done = mpirun(tmp_path, 2, *train, "--train.layout.tp=3")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "dp 1 x tp 3 x pp 1 x cp 1 is 3, and there are 2 ranks" in said[0]
