"""An RL job that kills its own process with -9 in a phase of its choice: for `support.nursery`."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.record.timer import PHASES, LoopTimer

WITHIN = {
    "evaluate": "rondo.rl.loop:Loop.evaluate",
    "store": "rondo.rl.record.observer:Watch.__call__",
    "log": "rondo.jobs.job:Job.log",
    "save": "rondo.train.checkpoints.dcp:write",
    "manifest": "rondo.train.checkpoints.saving:prune",
    "restore": "rondo.rl.loop:Loop.restore",
    "leave": "rondo.rl.jobs:export",
}
"""What else a job does, each by the function that does it. `save` and `manifest` happen in a thread."""
SOON = 0.002
"""Seconds from the beginning of a phase to its kill."""


def run(config: str, phase: str = "", nth: int = 1) -> None:
    """Is killed in the `nth` time of the phase; without one it goes on to its end."""
    torch.seed()  # as in a process that is started and not forked
    if phase in PHASES:
        _in_clock(phase, nth)
    elif phase:
        _in_function(WITHIN[phase], nth)
    jobs.run(jobs.plan(RlConfig.model_validate_json(config)))


def _in_clock(phase: str, nth: int) -> None:
    timed, begun = LoopTimer.__call__, [0]

    @contextmanager
    def deadly(clock: LoopTimer, name: str) -> Iterator[None]:
        with timed(clock, name):
            if name == phase:
                _count(begun, nth)
            yield

    LoopTimer.__call__ = deadly  # type: ignore[method-assign]


def _in_function(place: str, nth: int) -> None:
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *within, name = path.split(".")
    for each in within:
        owner = getattr(owner, each)
    function: Callable[..., Any] = getattr(owner, name)
    begun = [0]

    def deadly(*arguments: Any, **named: Any) -> Any:
        _count(begun, nth)
        return function(*arguments, **named)

    setattr(owner, name, deadly)


def _count(begun: list[int], nth: int) -> None:
    begun[0] += 1
    if begun[0] == nth:
        threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGKILL)).start()
