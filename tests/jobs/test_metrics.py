"""Metrics and checkpoints in a job's folder: parts of a long file, and checkpoints at a URL."""

import json
from pathlib import Path

import pytest

from rondo.jobs.job import Job
from rondo.jobs.metrics import BLOCK, seek_after


@pytest.mark.parametrize("after", [None, -1, 0, 1, 4999, 7777, 9999, 10_000])
def test_rows_after_a_step(tmp_path: Path, after: int | None) -> None:
    lines = [json.dumps({"step": step, "loss": 1 / (step + 1)}) for step in range(10_000)]
    lines[::1000] = ["{", *lines[1000::1000]]
    lines.insert(5000, '{"step": 49')
    lines[7000:7000] = ["[1]", '{"loss": 1}', '{"step": "9"}', '{"step": null}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 10000, "lo')
    wanted = [step for step in range(1, 10_000) if after is None or step > after]
    assert [row["step"] for row in Job(tmp_path).metrics(after)] == wanted
    assert [row["step"] for row in Job(tmp_path).metrics(after, limit=3)] == wanted[:3]
    assert Job(tmp_path).last_metrics()["step"] == 9999


def test_a_poll_reads_a_part_of_the_file(tmp_path: Path) -> None:
    line = json.dumps({"step": 1, "loss": 0.5}) + "\n"
    (tmp_path / "metrics.jsonl").write_text(line * 10_000 + '{"step": 2}\n')
    with (tmp_path / "metrics.jsonl").open("rb") as file:
        seek_after(file, 1)
        assert file.tell() > 10_000 * len(line) - 2 * BLOCK


def test_checkpoints_at_a_url(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "abc").mkdir(parents=True)
    job, place = Job(tmp_path / "jobs" / "abc"), tmp_path / "elsewhere" / "abc"
    assert job.saved_steps() == {}
    (job.path / "origin.json").write_text(json.dumps({"save_to": f"file://{tmp_path}/elsewhere"}))
    assert job.saved_steps() == {}
    for step in (9, 10):
        (place / f"step_{step}").mkdir(parents=True)
        (place / f"step_{step}" / "manifest.json").write_text("{}")
    (place / "step_11").mkdir()
    assert list(job.saved_steps()) == [10, 9], "a checkpoint without a manifest is not complete"
    assert job.saved_steps()[9] == pytest.approx((place / "step_9" / "manifest.json").stat().st_mtime)
