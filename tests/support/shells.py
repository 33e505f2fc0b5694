"""Real shells with the completion of `rondo`, on terminals of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rondo.cli.completion.scripts import SCRIPTS
from support.terminal import Terminal


@dataclass(frozen=True)
class Shell:
    """`setup` makes the prompt plain and loads the script."""

    command: Sequence[str]
    setup: str
    home: Path

    def completes(self, typed: str, shown: str) -> None:
        """Types a line and Tab, and waits until `shown` is on the screen."""
        env = {"PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", "RONDO_HOME": str(self.home)}
        with Terminal(["env", "-C", str(self.home), *self.command], env) as terminal:
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
