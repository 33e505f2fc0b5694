"""A `rondo` command in a process that sends itself signals in a given phase."""

from __future__ import annotations

import os
import signal
import sys
import time as clock
from collections.abc import Callable
from typing import Any

from rondo import models
from rondo.cli.main import main
from rondo.rl import jobs as rl_jobs
from rondo.train import jobs as train_jobs
from rondo.train.checkpoints import dcp
from rondo.train.checkpoints.saving import Checkpoints
from rondo.train.learner.learner import Learner

PHASES: dict[str, list[tuple[Any, str]]] = {
    "load": [(train_jobs, "_model"), (rl_jobs, "_model")],
    "resume": [(Checkpoints, "newest")],
    "forward_backward": [(Learner, "forward_backward")],
    "optimizer": [(Learner, "optim_step")],
    "save": [(dcp, "write")],
    "export": [(models, "save_into")],
}
"""Functions that a phase calls."""


def run(argv: list[str], said: str, phase: str = "", time: int = 1, *signals: str) -> None:
    """Run the command with standard error in the file `said`. At the `time`-th call of the phase's function the process
    receives the signals.
    """
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
    sys.argv = ["rondo", *argv]
    count = 0

    def interrupted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == time:
                for name in signals:
                    os.kill(os.getpid(), signal.Signals[name])
            return original(*arguments, **options)

        return call

    for owner, name in PHASES.get(phase, []):
        setattr(owner, name, interrupted(getattr(owner, name)))
    code = main(argv)
    sys.stderr.flush()
    os._exit(code)


def abort_in_save(argv: list[str], said: str) -> None:
    """Ctrl-C twice, while a checkpoint is written that takes an hour."""

    def write(*arguments: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            clock.sleep(0.2)  # so that the main thread handles the first before the second arrives
        clock.sleep(3600)

    dcp.write = write  # type: ignore[assignment]
    run(argv, said)
