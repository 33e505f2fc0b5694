"""What TensorBoard and Weights & Biases make of what they are told."""

import json
from pathlib import Path

import pytest

from rondo.train.metrics.events import EventFile
from support.peers import run_peer

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"


def test_tensorboard_reads_a_job_that_went_on(tmp_path: Path) -> None:
    """Steps 3 and 4 were lost with the process, and done again by another."""
    for steps in (range(1, 5), range(3, 7)):
        events = EventFile(tmp_path)
        for step in steps:
            events.log(step, {"loss": steps[0] / step, "peak_flops/bf16": 9.89e14})
        events.close()
    found = json.loads(run_peer("trackers", HERE / "_tensorboard.py", tmp_path))
    assert found.keys() == {"loss", "peak_flops/bf16"}
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in found["loss"]] == pytest.approx([1, 1 / 2, 3 / 3, 3 / 4, 3 / 5, 3 / 6])
    assert found["peak_flops/bf16"][0][1] == pytest.approx(9.89e14)


def test_wandb_keeps_a_run_of_the_jobs_name(tmp_path: Path) -> None:
    told = {"WANDB_MODE": "offline", "PYTHONPATH": str(SOURCES), "HOME": str(tmp_path)}
    lines = run_peer("trackers", HERE / "_wandb.py", tmp_path, **told).splitlines()
    first, second = (json.loads(line) for line in lines if line.startswith("{"))
    for found in (first, second):
        assert found["runs"] == [["project", "abcdef", "abcdef"]]
    rows = first["rows"] + second["rows"]
    assert [row["step"] for row in rows] == [1, 2, 3, 3, 4]
    assert [row["loss"] for row in rows] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 3, 1 / 4])
    assert {row["seconds/load"] for row in rows} == {0.25}
