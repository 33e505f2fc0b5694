"""The current activity on standard error once it takes over a second: a spinner on a terminal, else one line."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rondo.base.telemetry.activity import display, terminal

DELAY = 1.0
PERIOD = 0.1
GAP = 0.3
"""Seconds between two activities that count as one wait."""
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ERASE = "\r\x1b[2K"


@contextmanager
def spinner() -> Iterator[None]:
    """Displays the activities of the block."""
    with display(_Spinner().show):
        yield


class _Spinner:
    """Its thread starts with the first activity and ends when there has been none for a while."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._since = 0.0
        self._ended = 0.0
        self._drawn = False
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None

    def show(self, text: str | None) -> None:
        with terminal:
            now = time.monotonic()
            if text is None:
                self._ended = now
                self._erase()
            elif self._text is None and now - self._ended > GAP:
                self._since = now
            self._text = text
            if text is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rondo-spinner", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD)
            with terminal:
                now = time.monotonic()
                if self._text is None and now - self._ended > DELAY:
                    self._thread = None
                    return
                if self._text is not None and now - self._since >= DELAY:
                    self._draw(self._text, now - self._since)

    def _draw(self, text: str, seconds: float) -> None:
        if not on_terminal():
            if text not in self._told:
                self._told.add(text)
                print(f"{text} ...", file=sys.stderr, flush=True)
            return
        frame = FRAMES[int(seconds / PERIOD) % len(FRAMES)]
        line = f"{frame} {text}  {seconds:.0f} s"
        sys.stderr.write(ERASE + line[: _columns() - 1])
        sys.stderr.flush()
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
            self._drawn = False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):  # a terminal without a size, or a replaced stream
        return 80


def on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
