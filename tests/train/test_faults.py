"""Losses that are not finite, spikes, stragglers, and being told to stop."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.cli.main import main
from rondo.data.batching.packing import PackedRow
from rondo.jobs.job import Job
from rondo.train import jobs
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.losses.sums import Loss
from rondo.train.metrics.faults import Diverged, Faults
from rondo.train.metrics.stragglers import Pace, slow
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import wait_until

STEPS = 12


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    with atomic_dir(tmp_path / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers {i * i}"}) for i in range(50)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    sizes = {"tokens_per_step": 200, "tokens_per_microbatch": 128, "max_length": 64}
    told = {"model": str(tmp_path / "model"), "data": str(tmp_path / "data.jsonl"), "save_every": 4}
    return TrainConfig.model_validate({**told, **sizes, "steps": STEPS})


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Which passes of the learner, from the first, give a loss that is not finite."""
    passes, found = iter(range(1, 1000)), set[int]()
    real = Learner.forward_backward

    def maybe(learner: Learner, batch: Sequence[PackedRow], loss: Loss, **more: object) -> Metrics:
        metrics = real(learner, batch, loss, **more)  # type: ignore[arg-type]
        return metrics | {"loss": float("nan")} if next(passes) in found else metrics

    monkeypatch.setattr(Learner, "forward_backward", maybe)
    return found


def run(config: TrainConfig) -> tuple[Job, list[dict[str, float]]]:
    plan = jobs.plan("pretrain", config)
    jobs.run(plan)
    return plan.job, [json.loads(line) for line in (plan.job.path / "metrics.jsonl").read_text().splitlines()]


def test_a_loss_that_is_not_finite_is_left_out(config: TrainConfig, broken: set[int]) -> None:
    broken.update({3, 7})
    _, rows = run(config)
    assert [row["step"] for row in rows if "left_out" in row] == [3, 7]
    assert len(rows) == STEPS


def test_what_was_learned_is_taken_back(config: TrainConfig, broken: set[int]) -> None:
    broken.add(7)
    _, rows = run(config.model_copy(update={"on_nan": "roll_back"}))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    whole = [row["loss"] for row in rows]
    broken.clear()
    _, calm = run(config.model_copy(update={"lr": config.lr * (1 + 1e-9)}))
    assert whole[:4] == pytest.approx([row["loss"] for row in calm[:4]], abs=1e-5)
    assert whole[4] != pytest.approx(calm[4]["loss"], abs=1e-3), "the data go on after the batch that did it"


@pytest.mark.parametrize(
    ("on_nan", "says"),
    [
        ("stop", r"step 5: the loss is nan\. Lower train\.lr"),
        ("skip", "step 8: the loss is nan after 3 batches in a row were left out"),
        ("roll_back", "step 5: the loss is nan after it went back 3 times"),
    ],
)
def test_it_stops_after_so_many(config: TrainConfig, broken: set[int], on_nan: str, says: str) -> None:
    broken.update(range(5, 100))
    with pytest.raises(Diverged, match=says):
        run(config.model_copy(update={"on_nan": on_nan, "most_faults": 3}))


def test_there_may_be_nothing_to_go_back_to(config: TrainConfig, broken: set[int]) -> None:
    broken.add(2)
    with pytest.raises(Diverged, match="there is no checkpoint yet to go back to"):
        run(config.model_copy(update={"on_nan": "roll_back"}))


def test_a_spike_is_what_is_far_above_the_median(config: TrainConfig) -> None:
    faults = Faults(config.model_copy(update={"spike": 10.0}))
    for i in range(15):
        assert faults.judge(1.0, 500.0 if i == 3 else 1.0) is None, "too few are known"
    assert faults.judge(1.0, 1.0) is None
    assert faults.judge(1.0, 9.0) is None
    assert "is 11, and was 1 in the median" in str(faults.judge(1.0, 11.0))
    assert "inf" in str(faults.judge(1.0, float("inf")))
    again = Faults(faults.config)
    again.restore(json.loads(json.dumps(faults.state())))
    assert again == faults


def test_who_is_slower_than_the_others_is_named() -> None:
    paces = [Pace(rank, f"host{rank // 2}", 0.01, 0.001) for rank in range(8)]
    assert slow(paces, 1.0) == []
    paces[5] = Pace(5, "host2", 0.04, 0.001)
    paces[6] = Pace(6, "host3", 0.011, 0.5)
    assert slow(paces, 1.0) == [
        "rank 5 on host2 computes 4.0 times slower than the median rank",
        "rank 6 on host3 waits 0.50 s a step for its data, the median rank 0.00 s",
    ]


def test_told_to_stop_it_saves_and_ends_well(config: TrainConfig, tmp_path: Path) -> None:
    flags = [f"--train.{name}={value}" for name, value in config.model_dump(exclude_unset=True).items()]
    command = [arg.replace("--train.steps=12", "--train.steps=100000") for arg in flags]
    train = [sys.executable, "-m", "rondo", "train", "pretrain", *command]
    with (tmp_path / "said").open("w") as said, subprocess.Popen(train, stderr=said) as process:
        wait_until(lambda: process.poll() is not None or any(job.last_metrics() for job in Job.all()))
        process.terminate()
        assert process.wait(60) == 0
    assert "is saved. Resume with" in (tmp_path / "said").read_text()
    (job,) = Job.all()
    assert job.state() == "paused"
    step = job.status()["step"]
    assert Path(job.checkpoints, f"step_{step}", "manifest.json").is_file()
    assert main(["job", "show", job.short]) == 0
