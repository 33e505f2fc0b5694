"""A training job over several ranks is the job of one process, whatever happens to a rank."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.parallel.config import LayoutConfig
from rondo.train import jobs
from rondo.train.config import TrainConfig
from support.home import own_home
from support.launch import TESTS, shared
from support.nursery import Nursery
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import scaled

STEPS = 12
HEAVY = (
    "torch.distributed.fsdp",
    "rondo.parallel.apply",
    "rondo.train.checkpoints.dcp",
    "rondo.train.learner.pipelined",
)
"""What ranks would import by themselves when they come to it."""
RANKS = str(TESTS / "train/_ranks.py")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and data, and in `alone` the home of a job that one process has done. The model's file
    is in bf16, as most are: ranks widen their own parts of it."""
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model().to(torch.bfloat16), model)
        tiny_tokenizer().save(model)
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers {i * i}"}) for i in range(50)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(folder / "alone")))
        jobs.run(jobs.plan("pretrain", config(folder)))
    return folder


def config(ground: Path, **changes: object) -> TrainConfig:
    return TrainConfig(
        model=str(ground / "model"),
        data=str(ground / "data.jsonl"),
        steps=STEPS,
        tokens_per_step=400,
        tokens_per_microbatch=128,
        max_length=64,
        save_every=2,
        warmup=5,
        keep=STEPS,
        eps=1e-3,  # so that no step is decided by the sign of what is almost nothing
    ).model_copy(update=changes)


def torchrun(home: Path, ranks: int, *program: str, restarts: int = 0) -> "subprocess.CompletedProcess[str]":
    environment = shared(ranks) | {"RONDO_HOME": str(own_home(home))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0", "--nproc-per-node", str(ranks)]
    launcher += ["--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    return subprocess.run(
        [*launcher, *program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=scaled(200),
    )


@dataclass(frozen=True)
class Ended:
    """How ranks ended, and what they said: one after the other."""

    codes: list[int]
    out: str
    err: str


class Ranks:
    """Ranks that nobody starts again, as with mpirun: forks of one process."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery

    def run(self, home: Path, size: int, config: TrainConfig, *faults: str) -> Ended:
        environment = shared(size) | {"RONDO_HOME": str(own_home(home))}
        said = [f"{home}-{rank}" for rank in range(size)]
        pids = []
        for rank, name in enumerate(said):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            given = (name, config.model_dump_json(), *faults)
            pids.append(self._nursery.start("train._ranks:in_nursery", *given, environment=own))
        codes = [self._nursery.wait(pid) for pid in pids]
        out, err = ("".join(Path(f"{name}.{kind}").read_text() for name in said) for kind in ("out", "err"))
        return Ended(codes, out, err)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Nursery(["train._ranks", *HEAVY]) as nursery:
        yield Ranks(nursery)


def flags(config: TrainConfig) -> list[str]:
    given = config.model_dump(exclude_unset=True, exclude={"model", "data", "layout"})
    settings = [f"--train.{name}={value}" for name, value in given.items()]
    return ["--model", config.model, "--data", str(config.data), *settings]


def job_of(home: Path) -> Path:
    (job,) = (home / "jobs").iterdir()
    return job


def rows_of(home: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (job_of(home) / "metrics.jsonl").read_text().splitlines()]


def losses(home: Path) -> list[float]:
    rows = rows_of(home)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    return [row["loss"] for row in rows]


def same(home: Path, other: Path) -> None:
    """The same job, with the same losses and weights but for the order of sums."""
    assert job_of(home).name == job_of(other).name
    assert losses(home) == pytest.approx(losses(other), abs=1e-5)
    found, want = (load_file(job_of(each) / "export/model.safetensors") for each in (home, other))
    assert found.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(found[name], want[name], atol=1e-6, rtol=0, msg=name)


def test_two_ranks_do_the_job_of_one_and_one_may_die(ground: Path, ranks: Ranks, tmp_path: Path) -> None:
    """In the middle of a save, and in mid-step, after which torchrun starts both again. Then all of it dies at once,
    the launcher too, and the job goes on from a command line."""
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    done = ranks.run(calm, 2, config(ground))
    assert done.codes == [0, 0], done.err
    same(calm, ground / "alone")
    done = ranks.run(shaken, 2, config(ground), "1:3:dies_in_a_save")
    assert done.codes == [1, -signal.SIGKILL], done.err
    assert "rank 1 on" in done.err
    faults = ("1:5:dies", "1:8:kills_all")
    killed = torchrun(shaken, 2, RANKS, config(ground).model_dump_json(), *faults, restarts=1)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "rank 1 on" in killed.stderr
    assert 6 < rows_of(shaken)[-1]["step"] < STEPS
    again = torchrun(shaken, 2, "-m", "rondo", "train", "pretrain", *flags(config(ground)))
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == str(job_of(shaken) / "export")
    assert again.stderr.count(f"step {STEPS} of {STEPS}") == 1, "the first rank alone shows progress"
    last = f"checkpoints/step_{STEPS}"
    for file in (f"{last}/__0_0.distcp", f"{last}/__1_0.distcp", "export/model.safetensors"):
        assert sha256_file(job_of(calm) / file) == sha256_file(job_of(shaken) / file)
    assert losses(calm) == losses(shaken)


def test_it_goes_on_in_other_layouts(ground: Path, ranks: Ranks, tmp_path: Path) -> None:
    """Two ranks with ZeRO-3, then four of which two share every layer, then one process, then two stages."""
    home = tmp_path / "home"
    for size, layout, until in [(2, {}, 4), (4, {"tp": 2, "zero": 2}, 6), (1, {}, 8), (2, {"pp": 2}, STEPS)]:
        told = config(ground, layout=LayoutConfig(**layout))
        done = ranks.run(home, size, told, f"0:{until}:is_told_to_stop")
        assert done.codes == [0] * size, done.err
        if until < STEPS:
            assert done.out.strip() == f"step {until} of {STEPS} is saved"
    same(home, ground / "alone")


def test_a_rank_that_hangs_is_found_and_named(ground: Path, ranks: Ranks, tmp_path: Path) -> None:
    home = tmp_path / "home"
    begin = time.monotonic()
    done = ranks.run(home, 2, config(ground, layout=LayoutConfig(stall=2)), "1:5:sleeps")
    assert done.codes == [1, 1]
    assert time.monotonic() - begin < min(scaled(100), 590), "not the 600 s of layout.timeout"
    # The other rank may say that the first one is gone, which a launcher would have ended before.
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: rank ")]
    assert line.startswith("error: rank 1 on ")
    assert "no rank has got on for" in line
    assert "raise train.layout.stall" in line
    assert "step 5: saving" in line or "step 5: optimizer" in line
    job = job_of(home)
    assert json.loads((job / "status.json").read_text())["state"] == "failed"
    assert "on_step" in (job / "hang/rank_1.stacks").read_text()
    assert json.loads((job / "hang/rank_0.json").read_text())["entries"]


def test_what_ends_one_rank_ends_all_with_its_reason(ground: Path, ranks: Ranks, tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = ranks.run(home, 2, config(ground), "1:5:fails")
    assert all(done.codes)
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: rank 1 on ")
    assert lines[0].endswith("the disk is on fire")
    status = json.loads((job_of(home) / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"].endswith("the disk is on fire")


def test_a_layout_that_one_process_cannot_have_is_refused(ground: Path) -> None:
    with pytest.raises(ConfigError, match=r"dp 1 x tp 2 x pp 1 x cp 1 is 2, and there are 1 ranks") as error:
        jobs.plan("pretrain", config(ground, layout=LayoutConfig(tp=2)))
    assert error.value.param == "train.layout.dp"
