"""`rondo` as a fork of a nursery, for tests in which its start is not the point: importing torch costs seconds."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from support.nursery import Nursery

SERVE = ("rondo.cli.commands.serve", "rondo.server.load", "support.forked")
"""What the nursery of `rondo serve` imports."""


class Forked:
    """`rondo ARGV`. What it says is appended to the files `out` and `err` of the folder."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._nursery = nursery
        self.out, self.err = folder / "out", folder / "err"
        self._code: int | None = None
        given = (list(argv), str(self.out), str(self.err))
        self.pid = nursery.start("support.forked:run", *given, environment=environment)

    @property
    def is_running(self) -> bool:
        return self._code is None and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; below 0 it was a signal."""
        if self._code is None:
            self._code = self._nursery.wait(self.pid)
        return self._code

    def kill(self) -> None:
        """With -9, if it has not ended."""
        if self._code is None:
            self.signal(signal.SIGKILL)
            self.wait()


def run(argv: list[str], out: str, err: str) -> None:
    """In the fork."""
    from rondo.cli.main import main

    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), stream)
    sys.argv = ["rondo", *argv]
    try:
        code: object = main(argv)
    except SystemExit as ended:
        code = ended.code
    for written in (sys.stdout, sys.stderr):
        written.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
