"""What ranks do in tests of jobs over several of them: a program for torchrun and for `support.nursery`."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from rondo.base.errors import RondoError, StorageError
from rondo.cli.main import _fail
from rondo.parallel.ranks.crew import Paused, together
from rondo.parallel.ranks.world import read_world
from rondo.train import jobs
from rondo.train.checkpoints import dcp
from rondo.train.config import TrainConfig
from support.processes import children_of


def _die_while_writing() -> None:
    """In the middle of the next file of a checkpoint."""

    def write(stream: dcp._Hashed, data: bytes) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    dcp._Hashed.write = write  # type: ignore[method-assign]


def _kill_all() -> None:
    """The launcher, and all ranks at once."""
    launcher = os.getppid()
    ranks = children_of(launcher)
    for pid in (launcher, *(rank for rank in ranks if rank != os.getpid()), os.getpid()):
        os.kill(pid, signal.SIGKILL)


def job(config: str, *faults: str) -> int:
    """A job. A fault, `RANK:STEP:WHAT`, is what a rank does at a step: the first one in the launcher's first attempt,
    the second in its second, and so on."""
    world = read_world()
    told = TrainConfig.model_validate_json(config)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    rank, at_step, does = faults[attempt].split(":") if attempt < len(faults) else ("-1", "-1", "")

    def on_step(step: int, metrics: object) -> None:
        if world.rank == int(rank) and step == int(at_step):
            if does == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if does == "fails":
                raise StorageError("the disk is on fire")
            if does == "kills_all":
                _kill_all()
            if does == "dies_in_a_save":
                _die_while_writing()
            if does == "sleeps":
                time.sleep(600)
            if does == "is_told_to_stop":
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        with together(world, told.layout, torch.device("cpu")) as crew:
            jobs.run(jobs.plan("pretrain", told, crew), on_step, crew=crew)
    except Paused as pause:
        if world.first:
            print(pause)
    return 0


def main(*arguments: str) -> int:
    try:
        return job(*arguments)
    except RondoError as error:
        return _fail(error, error.exit_code)


def in_nursery(said: str, *arguments: str) -> None:
    """As a process of its own, with its output in the files `said`.out and `said`.err."""
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
    try:
        code = main(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
