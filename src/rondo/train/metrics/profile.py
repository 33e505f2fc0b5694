"""Profile of some steps of a job: timeline, durations and memory.

The steps are set in advance (`train.profile`) or requested by a signal to a running process of the job.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rondo.base.storage.files import atomic_dir
from rondo.base.telemetry.log import get_logger

log = get_logger(__name__)

SIGNAL = signal.SIGUSR1
STEPS = 3
"""Number of steps to profile after a signal."""
ROWS = 60
_dump_snapshot: Any = torch.cuda.memory._dump_snapshot
HISTORY = 100_000
"""Limit of recorded allocations and releases of GPU memory."""


class Profiler:
    """Profiler whose `log` is called at the end of each step, and so at the start of the next one."""

    def __init__(self, folder: Path, device: torch.device, steps: str = "", rank: int = 0) -> None:
        """`steps` such as 12 or 10-12; without them it waits for the signal."""
        self._folder, self._device = folder, device
        self._suffix = f"_rank_{rank}" if rank else ""
        self._first, self._last = span(steps) if steps else (0, 0)
        self._running: profile | None = None
        self._asked = False
        self._before: object = None
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = signal.signal(SIGNAL, self._on_signal)
        if self._first == 1:
            self._start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._running is not None and step >= self._last:
            self._finish(step)
        if self._running is None and self._asked:
            self._first, self._last, self._asked = step + 1, step + STEPS, False
        if self._running is None and step + 1 == self._first:
            self._start()

    def close(self) -> None:
        if self._running is not None:
            self._stop()
            log.warning("the job ended before the steps that were to be profiled had: there is no profile")
        if self._listens:
            signal.signal(SIGNAL, self._before)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def _start(self) -> None:
        # The log of torch's profiler library bypasses Python, and would disturb a live terminal.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=HISTORY)
        self._running = profile(activities=activities, record_shapes=True, profile_memory=True)
        self._running.start()

    def _stop(self) -> profile:
        assert self._running is not None
        ended, self._running = self._running, None
        ended.stop()
        if self._device.type == "cuda":
            torch.cuda.memory._record_memory_history(enabled=None)
        return ended

    def _finish(self, step: int) -> None:
        """Writes the profile. A job that resumed after the requested steps has not recorded them."""
        if step > self._last:
            self._stop()
            return
        path = self._folder / (_name(self._first, self._last) + self._suffix)
        with atomic_dir(path, replace=True) as folder:
            if self._device.type == "cuda":
                _dump_snapshot(str(folder / "memory.pickle"))
            ended = self._stop()
            ended.export_chrome_trace(str(folder / "trace.json.gz"))
            (folder / "operations.txt").write_text(_table(ended, "time", self._device))
            memory = _tensors(step), _table(ended, "memory", self._device)
            (folder / "memory.txt").write_text("\n\n".join(memory))
        log.info("profiled", extra={"steps": f"{self._first}-{self._last}", "folder": path})


def span(steps: str) -> tuple[int, int]:
    """'10-12' -> (10, 12), '12' -> (12, 12)."""
    first, _, last = steps.partition("-")
    return int(first), int(last or first)


def _name(first: int, last: int) -> str:
    return f"steps_{first}-{last}" if last > first else f"step_{first}"


def _tensors(step: int) -> str:
    """Table of the tensors held between two steps: weights, optimizer states and others."""
    alike = Counter[tuple[str, str, str, int]]()
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor):
            kind = (
                str(found.device),
                str(found.dtype).removeprefix("torch."),
                str(tuple(found.shape)),
                found.nbytes,
            )
            alike[kind] += 1
    lines = [f"Tensors after step {step}, alike ones together: MiB, how many, device, type, shape"]
    for (device, dtype, shape, size), count in sorted(alike.items(), key=lambda each: -each[0][3] * each[1])[
        :ROWS
    ]:
        lines.append(f"{size * count / 2**20:10.2f} {count:6}  {device:<7} {dtype:<10} {shape}")
    return "\n".join(lines)


def _table(ended: profile, order: str, device: torch.device) -> str:
    """Table of operations by shape, sorted by their own cost in descending order."""
    where = "cuda" if device.type == "cuda" else "cpu"
    key = {
        ("time", "cpu"): "self_cpu_time_total",
        ("memory", "cpu"): "self_cpu_memory_usage",
        ("time", "cuda"): "self_device_time_total",
        ("memory", "cuda"): "self_device_memory_usage",
    }[order, where]
    averages = ended.key_averages(group_by_input_shape=True)
    return str(
        averages.table(sort_by=key, row_limit=ROWS, max_name_column_width=48, max_shapes_column_width=72)
    )
