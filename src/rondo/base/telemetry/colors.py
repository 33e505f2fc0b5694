"""ANSI colours for a terminal; text for a pipe, a dumb terminal or with NO_COLOR stays plain."""

from __future__ import annotations

import os
from typing import TextIO

CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}


def has_colors(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def paint(text: str, *styles: str) -> str:
    """`text` in these styles: names of `CODES`, or SGR parameters such as "38;5;120"."""
    codes = ";".join(str(CODES.get(style, style)) for style in styles)
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text
