"""`rondo job`, and what `rondo train` says about the job it is given."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rondo
from rondo import models
from rondo.base.errors import NotFound
from rondo.cli.main import main
from rondo.cli.view.steps import facts
from rondo.jobs.job import Job
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def data(own_home: Path) -> Path:
    models.save(tiny_model(), own_home / "models/tiny")
    tiny_tokenizer().save(own_home / "models/tiny")
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers"}) for i in range(20)]
    (own_home / "data.jsonl").write_text("\n".join(lines))
    return own_home / "data.jsonl"


def call(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> tuple[str, str]:
    assert main(list(argv)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def train(data: Path) -> list[str]:
    sizes = ["--train.tokens_per_step=200", "--train.tokens_per_microbatch=128", "--train.max_length=64"]
    return ["train", "pretrain", "--model", "tiny", "--data", str(data), "--train.steps=4", *sizes]


def test_the_life_of_a_job(data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from rondo.train import loop

    assert "no jobs" in call(capsys, "job", "list")[0]
    record = loop._Run.record
    with monkeypatch.context() as patch:

        def killed(run: loop._Run, metrics: dict[str, float]) -> None:
            run.config = run.config.model_copy(update={"save_every": 2})
            record(run, metrics)
            if run.learner.step == 3:
                raise KeyboardInterrupt

        patch.setattr(loop._Run, "record", killed)
        call(capsys, *train(data), code=130)
    [row] = json.loads(call(capsys, "job", "list", "--json")[0])
    assert (row["kind"], row["state"], row["step"], row["steps"], row["model"]) == (
        "pretrain",
        "paused",
        3,
        4,
        "tiny",
    )
    with pytest.raises(NotFound, match="has left no model so far"):
        rondo.LLM(row["job"][:6])
    out, err = call(capsys, *train(data))
    assert "it goes on from step 2 of 4" in err
    again, err = call(capsys, *train(data))
    assert again == out
    assert "done already" in err
    assert "goes on" not in err

    listed = call(capsys, "job", "list")[0].splitlines()
    assert listed[0].split() == ["job", "kind", "state", "step", "score", "started"]
    minute = time.strftime("%Y-%m-%d", time.localtime())
    assert listed[1].startswith(f"{row['job'][:12]}  pretrain  succeeded  4/4   -      {minute}")

    shown = json.loads(call(capsys, "job", "show", row["job"][:6], "--json")[0])
    assert (shown["job"], shown["state"], shown["result"]) == (row["job"], "succeeded", out.strip())
    assert shown["checkpoints"] == [4, 2]
    assert shown["metrics"]["step"] == 4
    assert shown["config"]["steps"] == 4
    sheet = call(capsys, "job", "show", row["job"])[0]
    assert "last metrics  loss " in sheet
    assert f"data          {data}" in sheet

    greedy = rondo.SamplingParams(temperature=0, max_tokens=5)
    [by_hash], [by_folder] = (
        rondo.LLM(model).generate("the", greedy) for model in (row["job"][:6], out.strip())
    )
    assert by_hash.outputs[0].token_ids == by_folder.outputs[0].token_ids
    inspected = json.loads(call(capsys, "model", "inspect", row["job"], "--json")[0])
    assert inspected["path"] == out.strip()


def test_a_job_that_was_killed_waits(capsys: pytest.CaptureFixture[str]):
    job = Job.of({"kind": "rl", "config": {"steps": 9}}, model="m")
    job.set_status("running", 5)
    with job.hold():
        assert "running" in call(capsys, "job", "list")[0]
    assert "paused  5/9" in call(capsys, "job", "list")[0]
    job.set_status("failed", 5, reason="the disk is full")
    assert "failed: the disk is full" in call(capsys, "job", "show", job.short)[0]


def named(home: Path, name: str, started: float = 0.0) -> None:
    (home / "jobs" / name).mkdir(parents=True)
    (home / "jobs" / name / "spec.json").write_text('{"kind": "sft"}')
    (home / "jobs" / name / "origin.json").write_text(json.dumps({"started": started}))


def test_a_prefix_names_a_job(own_home: Path, capsys: pytest.CaptureFixture[str]):
    one, two, three = "abcdef" + "0" * 58, "abcdef" + "1" * 58, "123456" + "a" * 58
    for index, name in enumerate((one, two, three)):
        named(own_home, name, 1e9 + index)
    assert [job.name for job in Job.all()] == [three, two, one]
    assert f"hash          {three}" in call(capsys, "job", "show", "123456")[0]
    assert f"hash          {one}" in call(capsys, "job", "show", "ABCDEF0")[0]
    error = call(capsys, "job", "show", "abcdef", code=2)[1]
    assert one in error
    assert two in error
    assert "too short" in call(capsys, "job", "show", "12345", code=4)[1]
    assert "no job 'ffffff'" in call(capsys, "job", "show", "ffffff", code=4)[1]


def test_a_broken_job_does_not_hide_the_others(own_home: Path, capsys: pytest.CaptureFixture[str]):
    named(own_home, "a" * 64, 1e9)
    named(own_home, "b" * 64)
    (own_home / "jobs" / ("b" * 64) / "spec.json").write_text("{")
    lines = call(capsys, "job", "list")[0].splitlines()
    assert lines[1].startswith("aaaaaaaaaaaa  sft   queued  0")
    assert lines[2].startswith("bbbbbbbbbbbb  broken: ")
    assert "not valid JSON" in call(capsys, "job", "show", "bbbbbb", code=6)[1]


def test_verbs(capsys: pytest.CaptureFixture[str]):
    assert "rondo job VERB" in call(capsys, "job")[0]
    assert "Did you mean `rondo job list`?" in call(capsys, "job", "lsit", code=2)[1]


def test_listing_jobs_needs_no_torch(own_home: Path):
    named(own_home, "c" * 64)
    code = "import sys\nfrom rondo.cli.main import main\n"
    code += "main(['job', 'list']); main(['job', 'show', 'cccccc']); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_nothing_is_minus_nothing():
    assert facts({"loss": -0.0, "lr": 1e-3}) == "loss 0  lr 0.001"
