"""`rondo rl rollouts|alarms|plot` over a job's folder."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from rl._rollouts import asked, equally, judged, said
from rondo.cli.main import main
from rondo.cli.view.live import LiveView
from rondo.graders import Score
from rondo.jobs.job import Job
from rondo.rl.record.events import EventLog
from rondo.rl.record.plot import _one, lanes
from rondo.rl.record.store import FOLDER, RolloutStore

LONG = "c\n\x1b[31m" + "x" * 90


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    job = Job.of({"kind": "rl", "config": {"steps": 3, "algorithm": "grpo"}})
    store = RolloutStore(job.path / FOLDER, 10, 1 << 30)
    for step in (1, 2, 3):
        groups = [
            asked(
                "abc", [said("cba", judged(1.0, correct=1.0)), said(LONG, judged(0.1 * step, correct=0.0))]
            ),
            asked("xy", [said("?", Score("error", 0.0, {}, "division by zero"))]),
        ]
        store.put(step, groups, equally(groups))
        job.log(
            {
                "step": step,
                "reward": 0.5 * step,
                "reward/correct": 0.5,
                "sampler_kl": 0.0,
                "seconds/rollout": 1.0,
            }
        )
    return job


def call(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(["rl", *argv]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_the_list_is_a_table_with_the_answers(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "rollouts", job.short, "--limit", "3").splitlines()
    assert lines[0].split() == [
        "id",
        "problem",
        "reward",
        "advantage",
        "tokens",
        "ended",
        "correct",
        "answer",
    ]
    assert [line.split()[0] for line in lines[1:4]] == ["3-0-0", "3-0-1", "3-1-0"]
    assert lines[1].endswith("cba")
    assert r"c\n\x1b[31mxxx" in lines[2]
    assert lines[2].endswith("...")
    assert len(lines[2]) <= 100
    assert lines[3].split()[2] == "error"
    assert lines[4] == "There are more: --after 3-1-0, or a larger --limit."
    rest = call(capsys, "rollouts", job.short, "--after", "3-1-0").splitlines()
    assert [line.split()[0] for line in rest[1:]] == [
        f"{s}-{i}" for s in (2, 1) for i in ("0-0", "0-1", "1-0")
    ]


def test_they_are_sorted_and_looked_for(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(
        capsys, "rollouts", job.short, "--sort", "reward", "--order", "asc", "--limit", "2", "--json"
    )
    assert [each["id"] for each in json.loads(found)["data"]] == ["1-0-1", "2-0-1"]
    found = call(capsys, "rollouts", job.short, "--step", "2", "--where", "correct=1", "--json")
    assert json.loads(found)["data"][0]["text"] == "cba"
    assert call(capsys, "rollouts", job.short, "--where", "reward>7") == "No rollout is like that.\n"
    assert "is no condition" in call(capsys, "rollouts", job.short, "--where", "high", code=2)
    assert "--limit" in call(capsys, "rollouts", job.short, "--limit", "0", code=2)


def test_one_is_shown_whole(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, "rollouts", job.short, "--show", "2-0-0", "--tokens")
    for line in ("reward     1", "  correct  1", "[user]\nabc", "[answer]\ncba", "weights    version 3"):
        assert line in shown
    assert [line.split() for line in shown.splitlines()[-3:]] == [
        ["99", "3", "-0.125", "0.5"],
        ["98", "3", "-0.25", "0.5"],
        ["97", "3", "-0.375", "0.5"],
    ]
    assert "grader: division by zero" in call(capsys, "rollouts", job.short, "--show", "2-1-0")
    whole = json.loads(call(capsys, "rollouts", job.short, "--show", "2-0-0", "--json"))
    assert (whole["object"], whole["pieces"][0]["token_ids"]) == ("rl.rollout", [99, 98, 97])
    assert "steps 1 to 3 are kept" in call(capsys, "rollouts", job.short, "--show", "9-0-0", code=4)


def test_a_job_without_rollouts_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    other = Job.of({"kind": "rl"})
    assert "has stored no rollouts" in call(capsys, "rollouts", other.short)
    assert call(capsys, "alarms", other.short) == "There was no alarm.\n"
    assert "no rewards to draw" in call(capsys, "plot", other.short, code=2)


def test_alarms_are_told_with_what_to_do(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    events = EventLog(job.path)
    for kind in ("hacking", "entropy"):
        events.add("alarm", 2, alarm=kind, since=1, saw="what it saw", advice="what helps")
    events.add("alarm_over", 3, alarm="entropy")
    lines = call(capsys, "alarms", job.short).splitlines()
    assert lines[0] == "step 2  hacking: since step 1 what it saw."
    assert lines[1] == "  what to do: what helps"
    assert lines[2].startswith("step 2  entropy (over)")
    assert [each["over"] for each in json.loads(call(capsys, "alarms", job.short, "--json"))] == [False, True]
    assert main(["job", "show", job.short]) == 0
    assert "hacking since step 1: what it saw" in capsys.readouterr().out


@pytest.mark.parametrize("several", [False, True])
def test_the_curves_are_drawn(
    job: Job, several: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    EventLog(job.path).add("alarm", 2, alarm="hacking", since=1, saw="", advice="")
    jobs = [job.short]
    if several:
        other = Job.of({"kind": "rl", "config": {"algorithm": "ppo"}})
        other.log({"step": 1, "reward": 0.5})
        jobs.append(other.short)
    out = tmp_path / "pictures" / "rl.png"
    assert call(capsys, "plot", *jobs, "--out", str(out)) == f"{out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "a picture ends in" in call(capsys, "plot", job.short, "--out", "rl.doc", code=2)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.5)), max_size=12))
def test_labels_of_alarms_do_not_overlap(found: list[tuple[float, float]]) -> None:
    spans = [(left, left + width) for left, width in found]
    placed = list(zip(spans, lanes(spans), strict=True))
    for ((left, right), lane), ((other, end), others) in combinations(placed, 2):
        assert lane != others or right <= other or end <= left


def test_alarms_of_one_step_are_drawn_above_one_another(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, since in (("hacking", 1), ("entropy", 1), ("entropy", 1), ("graders", 2)):
        EventLog(job.path).add("alarm", 2, alarm=kind, since=since, saw="", advice="")
    figure = Figure(figsize=(11, 7), layout="constrained")
    _one(figure, job.metrics(), job)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 3
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_live_block_shows_what_stands() -> None:
    block = LiveView("rl", 10)
    block.report(1, {"reward": 0.5, "alarms": 1.0, "alarm/hacking": 1.0})
    assert ("alarm", ["hacking", "`rondo rl alarms` says more"]) in list(block._lines())
    block.report(2, {"reward": 0.5, "alarms": 0.0})
    assert "alarm" not in dict(block._lines())
