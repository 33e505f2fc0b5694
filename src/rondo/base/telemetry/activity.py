"""The current activity of a process that may take seconds, for progress displays: `with activity("loading weights"):`.

Library code names its slow operations. A command line that displays them registers a `Display`; without one an activity
costs two list operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Display = Callable[[str | None], None]
"""Called with the innermost activity whenever it changes, and with None when the last one ends."""

terminal = threading.RLock()
"""Held while a display draws, and while another writer uses the terminal."""
_stack: list[str] = []
_display: Display | None = None


@contextmanager
def display(shown: Display | None) -> Iterator[None]:
    """Activities inside the block are displayed by `shown`; None hides them, as below a live view of its own."""
    global _display
    before, _display = _display, shown
    if before is not None:
        before(None)
    try:
        yield
    finally:
        if shown is not None:
            shown(None)
        _display = before


@contextmanager
def activity(text: str) -> Iterator[None]:
    """`text` is a participle phrase: "compiling kernels for this CPU"."""
    _stack.append(text)
    _report()
    try:
        yield
    finally:
        _stack.remove(text)
        _report()


@contextmanager
def undrawn() -> Iterator[None]:
    """Room for a line on the terminal: the display erases its own, and draws it again with the next change."""
    if _display is None or not _stack:
        yield
        return
    with terminal:
        _display(None)
        yield
    _report()


def _report() -> None:
    if _display is not None:
        _display(_stack[-1] if _stack else None)
