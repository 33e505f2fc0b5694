"""Lines from the terminal and answers to it: line editing with history, multi-line input, colours."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rondo.base.storage.home import home
from rondo.base.telemetry.colors import has_colors, paint

HISTORY_LINES = 1000
BLOCK = '"""'
CONTROLS = {
    code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in ("\n", "\t")
}


class Terminal:
    """Standard input and output. Prompts appear only if the input is a terminal."""

    def __init__(self, commands: tuple[str, ...]) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.colors = has_colors(sys.stdout)
        self._commands = commands

    def paint(self, text: str, *styles: str) -> str:
        return paint(text, *styles) if self.colors and text else text

    def visible(self, text: str) -> str:
        """On a terminal, control characters of a model's text are shown instead of executed."""
        return text.translate(CONTROLS) if sys.stdout.isatty() else text

    def note(self, text: str) -> None:
        """A line that is not part of an answer."""
        print(self.paint(text, "dim"), flush=True)

    def error(self, text: str) -> None:
        print(self.paint(f"error: {text}", "red"), flush=True)

    @contextlib.contextmanager
    def editing(self) -> Iterator[None]:
        """Line editing, completion of commands, and a history in RONDO_HOME."""
        if not self.interactive:
            yield
            return
        try:
            import readline
        except ImportError:  # a Python without readline has plain lines
            yield
            return
        file = home() / "chat_history"
        with contextlib.suppress(OSError):
            readline.read_history_file(file)
        readline.set_history_length(HISTORY_LINES)
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                _write_history(file, readline.write_history_file)

    def read(self) -> str | None:
        """The next input; None at its end (Ctrl-D). Raises KeyboardInterrupt."""
        line = self._line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(BLOCK):
            return self._block(line.lstrip().removeprefix(BLOCK))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            more = self._line(". ")
            if more is None:
                break
            lines.append(more)
        return "\n".join(lines)

    def _block(self, line: str) -> str:
        lines = []
        current: str | None = line
        while current is not None:
            if current.rstrip().endswith(BLOCK):
                lines.append(current.rstrip().removesuffix(BLOCK))
                break
            lines.append(current)
            current = self._line(". ")
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str | None:
        try:
            return input(self._prompt(prompt) if self.interactive else "")
        except EOFError:
            if self.interactive:
                print()
            return None

    def _prompt(self, text: str) -> str:
        """The bytes of a colour are marked, so that readline does not count them as columns."""
        return f"\001\x1b[36m\002{text}\001\x1b[0m\002" if self.colors else text

    def _complete(self, text: str, state: int) -> str | None:
        found = [name for name in self._commands if name.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None


def _write_history(file: Path, write: Callable[[Path], None]) -> None:
    """Readable by its owner only: inputs are private."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    write(file)
