"""Reports and samples of jobs in every state."""

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jobs.conftest import STEPS, rl_command, train_command
from rondo.cli.main import main
from rondo.jobs.job import Job
from rondo.jobs.report import facts_of as facts
from rondo.jobs.report import html, markdown, write_report
from rondo.jobs.samples import (
    SampledAnswer,
    add_samples,
    before_and_after,
    forget_samples_after,
    read_samples,
)
from rondo.jobs.summary import score_of
from support.home import own_home

VOID = {"meta", "br", "hr", "path", "polyline", "img"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    return tmp_path


class Page(HTMLParser):
    """Checks that each element is closed, and collects attributes that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_training_job_ends_with_a_report(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = ["--train.evaluate.every=2", f"--train.evaluate.data={ground / 'data.jsonl'}"]
    assert main([*train_command(ground), *held_out, "--name", "tuned"]) == 0
    (job,) = Job.all()
    page = Page((job.path / "report.html").read_text())
    assert page.loads == [] or all(load.startswith("#") for load in page.loads)
    assert {"svg", "polyline"} <= set(page.tags)
    text = (job.path / "report.md").read_text()
    for part in ("# sft tuned", "| State | succeeded |", "## Samples before and after", "rondo serve tuned"):
        assert part in text
    assert "| Time |" in text
    assert "rondo chat tuned" in text
    assert score_of(job) == {"loss": job.last_metrics()["evaluate/loss"]}
    capsys.readouterr()
    (job.path / "report.html").unlink()
    assert main(["job", "report", "tuned"]) == 0
    assert capsys.readouterr().out.strip() == str(job.path / "report.html")
    assert (job.path / "report.html").is_file()

    pairs = before_and_after(job.path, 5)
    assert len(pairs) == 5
    for before, after in pairs:
        assert (before.step, after.step) == (0, STEPS)
        assert before.split == "held_out"
        assert before.prompt.startswith("the user asks")
        assert before.expected.startswith(" it answers")


def test_the_commands_of_an_adapter_job_work(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train_command(ground, 2, "--adapter.kind=tokenformer"), "--name", "small"]) == 0
    (job,) = Job.all()
    commands = facts(job).commands
    assert "--server.adapters=" in commands["Serve with its base"]
    evaluate = shlex.split(commands["Evaluate with its base"])
    assert evaluate[1:5] == ["evaluate", str(ground / "model"), "--adapter", "small"]
    capsys.readouterr()
    assert (
        main([str(ground / "data.jsonl") if word == "HELD_OUT.jsonl" else word for word in evaluate[1:]]) == 0
    )
    assert "loss" in capsys.readouterr().out


def test_an_rl_job_has_the_same_prompts_before_and_after(ground: Path) -> None:
    assert main(rl_command(ground)) == 0
    (job,) = Job.all()
    pairs = before_and_after(job.path, 4)
    assert [(before.step, after.step) for before, after in pairs] == [(0, STEPS)] * 4
    assert all(before.prompt == after.prompt and before.reward is not None for before, after in pairs)
    assert {sample.split for sample in read_samples(job.path)} == {"held_out", "rollout"}
    assert set(score_of(job)) == {"reward"}
    assert "## Samples before and after" in (job.path / "report.md").read_text()


def test_sampling_does_not_change_training(ground: Path) -> None:
    losses = []
    for every in (0, 1):
        assert main([*train_command(ground), f"--train.samples.every={every}"]) == 0
        (job,) = Job.all()
        losses.append([row["loss"] for row in job.metrics()])
        samples = read_samples(job.path)
        assert len({sample.step for sample in samples}) == (STEPS + 1 if every else 0)
        assert main(["job", "rm", job.short, "--yes"]) == 0
    assert losses[0] == losses[1]


def test_failed_and_empty_jobs_have_reports(home: Path) -> None:
    job = Job.of({"kind": "rl", "config": {"steps": 9, "lr": 1e-3}}, model="m")
    assert "queued" in markdown(facts(job))
    job.set_status("failed", 3, reason="the disk <is> full | really")
    job.log({"step": 1, "loss": float("nan")})
    job.log({"step": 2, "loss": 1.0})
    add_samples(job.path, [SampledAnswer(1, "rollout", 0, "<b>ask</b>", "``` & answer")])
    write_report(job)
    page = (job.path / "report.html").read_text()
    Page(page)
    assert "&lt;b&gt;ask&lt;/b&gt;" in page
    assert "<b>ask</b>" not in page
    text = (job.path / "report.md").read_text()
    assert "| State | failed: the disk <is> full \\| really |" in text
    assert "````\n``` & answer\n````" in text
    assert re.search(r"rondo job logs [0-9a-f]{12}", text)


def test_long_curves_are_thinned(home: Path) -> None:
    job = Job.of({"kind": "sft", "config": {}})
    rows = "".join(json.dumps({"step": i, "loss": 1 / i, "lr": 1e-4}) + "\n" for i in range(1, 20_000))
    (job.path / "metrics.jsonl").write_text(rows)
    page = html(facts(job))
    Page(page)
    assert len(page) < 60_000
    assert "step 19999" in page


def test_samples_of_repeated_steps_are_forgotten(tmp_path: Path) -> None:
    add_samples(tmp_path, [SampledAnswer(step, "train", 0, "ask", f"answer {step}") for step in range(4)])
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"step": 4, "split"')  # cut off by a crash
    forget_samples_after(tmp_path, 2)
    assert [sample.step for sample in read_samples(tmp_path)] == [0, 1, 2]
    ((before, after),) = before_and_after(tmp_path, 5)
    assert (before.answer, after.answer) == ("answer 0", "answer 2")
