"""What a person sees of a job while it runs, and of its curves afterwards."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from rondo.cli.main import main
from rondo.cli.view.live import LiveView
from rondo.cli.view.sparkline import sparkline
from rondo.jobs.job import Job


def drawn(block: LiveView, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(block)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_curve_is_between_its_least_and_its_most() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([8, 8, 0, 0], 2) == "█▁"
    assert sparkline([1, 1], 40) == "▁▁"
    assert sparkline([1, math.nan, 2], 3) == "▁?█"
    assert sparkline([], 40) == ""


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_block_is_one_line_a_fact(width: int) -> None:
    block = LiveView("pretrain", 1000)
    assert "step 0 of 1000" in drawn(block, width)
    block.report(1, {"loss": 9.0, "evaluate/loss": 8.5})
    for step in range(1, 301):
        metrics = {"loss": 9.0 - step / 50, "tokens_per_second": 12345.6, "lr": 3e-4, "grad_norm": 0.5}
        metrics |= {"mfu": 0.4, "mfu_causal": 0.3, "peak_flops/bf16": 9.89e14}
        block.report(step, metrics | {"memory/resident": 3.0 * 2**30, "memory/resident_peak": 4.0 * 2**30})
    lines = drawn(block, width).splitlines()
    assert [line.split()[0] for line in lines] == [
        "pretrain",
        "loss",
        "tokens/s",
        "memory",
        "step",
        "evaluate",
    ]
    assert all(len(line) <= width for line in lines)
    assert "step 300 of 1000" in lines[0]
    assert "█" in lines[1]
    assert "12,346" in lines[2]
    assert "3.0 GB, at most 4.0 GB" in lines[3]
    if width >= 80:
        assert "to go" in lines[0]
        assert "mfu 40.0% (causal 30.0%) of 989 Tflop/s bf16" in lines[2]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    job = Job.of({"kind": "pretrain", "config": {}})
    for step in range(1, 101):
        job.log({"step": step, "loss": 100.0 / step, **({"accuracy": 0.5} if step % 10 == 0 else {})})
    return job


def test_curves_of_a_job(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "metrics", job.short]) == 0
    title, loss, accuracy = capsys.readouterr().out.splitlines()
    assert title.endswith("steps 1 to 100")
    assert loss.split()[:5] == ["loss", "100", "1", "1", "100"]
    assert loss.endswith("▁")
    assert accuracy.split()[-1] == "▁" * 10


def test_figures_of_a_job(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "metrics", job.short, "loss", "accuracy", "--rows", "3"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["step", "loss", "accuracy"],
        ["33", "3.03", "-"],
        ["66", "1.515", "-"],
        ["100", "1", "0.5"],
    ]
    assert main(["job", "metrics", job.short, "accuracy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found), found[0], found[-1]) == (100, {"step": 1}, {"step": 100, "accuracy": 0.5})
    assert main(["job", "metrics", job.short, "lost"]) != 0
    assert "it has loss, accuracy" in capsys.readouterr().err
