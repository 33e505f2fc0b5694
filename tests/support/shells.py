"""Real shells with the completion of `rondo`, on terminals of their own."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rondo.cli.completion.scripts import SCRIPTS
from support.waiting import scaled

ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07|[()][AB0])|[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Shell:
    """`setup` makes the prompt plain and loads the script."""

    command: Sequence[str]
    setup: str
    home: Path

    def completes(self, typed: str, shown: str) -> None:
        """Types a line and Tab, and waits until `shown` is on the screen."""
        env = {"PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", "RONDO_HOME": str(self.home)}
        with ShellTerminal(["env", "-C", str(self.home), *self.command], env) as terminal:
            terminal.type(f"{self.setup}; echo loa''ded\n")
            terminal.until("loaded\r\n")
            terminal.type(f"{typed}\t")
            terminal.until(shown)


def _prepared(name: str, home: Path) -> Path:
    """The script of a shell, and a command `rondo` that runs this Python."""
    (home / "bin").mkdir(exist_ok=True)
    command = home / "bin" / "rondo"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rondo "$@"\n')
    command.chmod(0o755)
    script = home / f"completion.{name}"
    script.write_text(SCRIPTS[name])
    return script


def bash(home: Path) -> Shell:
    script = _prepared("bash", home)
    return Shell(["bash", "--norc", "--noprofile", "-i"], f"PS1='> '; source {script}", home)


def zsh(home: Path) -> Shell:
    script = _prepared("zsh", home)
    return Shell(
        ["zsh", "-f", "-i"], f"PS1='> '; autoload -U compinit; compinit -u -D; source {script}", home
    )


def fish(home: Path) -> Shell:
    script = _prepared("fish", home)
    return Shell(
        ["fish", "--no-config", "-i"], f"function fish_prompt; echo '> '; end; source {script}", home
    )


class ShellTerminal:
    """An interactive program on a terminal of its own, to type into and read from."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], columns: int = 200) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.environ.update(env, TERM="xterm", COLUMNS=str(columns), LINES="100")
            os.execvp(command[0], list(command))

    def __enter__(self) -> ShellTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.end)

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def until(self, wanted: str, seconds: float = 30.0) -> str:
        """Everything shown until `wanted` appears, without control sequences."""
        shown, deadline = "", time.monotonic() + scaled(seconds)
        while wanted not in plain(shown):
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} was not shown: {plain(shown)!r}"
            if select.select([self.end], [], [], left)[0]:
                shown += os.read(self.end, 65536).decode(errors="replace")
        return plain(shown)


def plain(text: str) -> str:
    return ESCAPE.sub("", text)
