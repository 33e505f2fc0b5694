"""A command on a terminal of 80 columns: what a user types, and what appears."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from support.waiting import scaled

SOURCES = Path(__file__).parents[2] / "src"
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\001\002\r]")


class Terminal:
    """`rondo` with arguments. Ctrl-C is typed with `interrupt` or `send("\\x03")`, Ctrl-D with `send("\\x04")`."""

    def __init__(self, *arguments: object, environment: Mapping[str, str], columns: int = 80) -> None:
        self._master, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rondo.cli", *map(str, arguments)],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "PYTHONPATH": str(SOURCES), "TERM": "xterm", **environment},
        )
        os.close(follower)
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """All output without colours and cursor movements."""
        return STYLES.sub("", self.raw)

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def type(self, line: str) -> None:
        self.send(line + "\n")

    def interrupt(self, pattern: str) -> None:
        """Types Ctrl-C at a prompt until the pattern appears: `input` notices one that comes between its prompt and
        its wait only with the next key."""
        for _ in range(5):
            self.send("\x03")
            with contextlib.suppress(AssertionError):
                self.expect(pattern, 10)
                return
        raise AssertionError(f"no Ctrl-C led to {pattern!r}:\n{self.text}")

    def expect(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Waits until the output after the last match has the pattern, and forgets the output up to its end."""
        end = time.monotonic() + scaled(seconds)
        while True:
            found = re.search(pattern, self.text)
            if found:
                self.raw = self.text[found.end() :]
                return found
            assert time.monotonic() < end, f"{pattern!r} did not appear in:\n{self.text}"
            self.read(0.2)

    def end(self, seconds: float = 60) -> int:
        """Waits until the command has ended, and returns its exit code."""
        limit = time.monotonic() + scaled(seconds)
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"the command did not end:\n{self.text}"
            self.read(0.2)
        self.read(0)
        return self.process.returncode

    def read(self, seconds: float) -> None:
        """Reads what appears, until nothing has appeared for so long."""
        while select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self.raw += data.decode("utf-8", "replace")
            seconds = 0
