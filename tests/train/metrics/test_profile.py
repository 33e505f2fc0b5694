"""A job's steps looked into: those that were said before, and those after a signal."""

import gzip
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from rondo.train.config import TrainConfig
from rondo.train.metrics.profile import SIGNAL, Profiler

CPU = torch.device("cpu")


def steps(profiler: Profiler, first: int, last: int) -> None:
    """Each takes the sine of as many numbers as its number says."""
    for step in range(first, last + 1):
        torch.sin(torch.ones(step))
        profiler.log(step, {})


def sizes_of_sines(folder: Path) -> list[int]:
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    events = [event for event in trace["traceEvents"] if event.get("name") == "aten::sin"]
    return [event["args"]["Input Dims"][0][0] for event in events]


@pytest.mark.parametrize(
    ("asked", "name", "seen"), [("2-3", "steps_2-3", [2, 3]), ("1", "step_1", [1]), ("5", "step_5", [5])]
)
def test_the_steps_that_were_said(tmp_path: Path, asked: str, name: str, seen: list[int]) -> None:
    kept = torch.empty(7, 1 << 20, 9)  # among the largest, whatever other tests have left
    profiler = Profiler(tmp_path, CPU, asked)
    steps(profiler, 1, 6)
    assert kept.shape == (7, 1 << 20, 9)
    profiler.close()
    [folder] = tmp_path.iterdir()
    assert folder.name == name
    assert sizes_of_sines(folder) == seen
    assert "aten::sin" in (folder / "operations.txt").read_text()
    memory = (folder / "memory.txt").read_text()
    assert "CPU Mem" in memory
    assert "aten::ones" in memory
    assert "(7, 1048576, 9)" in memory


def test_a_signal_asks_for_the_next_three(tmp_path: Path) -> None:
    before = signal.getsignal(SIGNAL)
    profiler = Profiler(tmp_path, CPU, rank=3)
    steps(profiler, 7, 8)
    os.kill(os.getpid(), SIGNAL)
    steps(profiler, 9, 14)
    profiler.close()
    assert sizes_of_sines(tmp_path / "steps_10-12_rank_3") == [10, 11, 12]
    assert signal.getsignal(SIGNAL) == before


def test_a_job_that_has_passed_them_or_ends_first_has_none(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path, CPU, "1-2")
    steps(profiler, 5, 6)
    profiler.close()
    profiler = Profiler(tmp_path, CPU, "3-9")
    steps(profiler, 1, 6)
    profiler.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["x", "3-", "0", "5-2", "1-2-3", "-4"])
def test_what_is_no_span_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="10-12"):
        TrainConfig(profile=wrong)
