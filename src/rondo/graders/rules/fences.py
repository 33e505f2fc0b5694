"""Parser of fenced code blocks in Markdown, by CommonMark's rules, in one pass over the lines.

A fence is three or more backticks or tildes, indented at most three columns relative to the text or the list item
around it. It is closed by a line with at least as many of the same character. One rule is wider than CommonMark's:
inside a list item, a block extends to its closing fence, even if its lines are less indented than the item.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")
_OPENING = re.compile(r"(`{3,}+)([^`]*+)\Z|(~{3,}+)(.*)\Z")
_ITEM = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])(?=[ \t]|\Z)")
_PYTHON = re.compile(r"[ic]?py(?:thon)?[\d.]*|[\w-]+\.py")
_LABEL = re.compile(r"[\s{.]*([\w.+-]*)")
_DEEPEST = 8
"""Maximum number of list items that may begin on one line."""
_FURTHER = 4
"""Columns of indentation from which a line is indented code and not a fence."""


@dataclass(frozen=True)
class Block:
    info: str
    """Text after the opening fence."""
    start: int
    end: int
    indent: int
    """Columns of indentation of the opening fence, which are removed from every line."""
    closed: bool

    @property
    def label(self) -> str:
        """The language, in lower case."""
        found = _LABEL.match(self.info)
        return found.group(1).lower() if found else ""

    @property
    def is_python(self) -> bool:
        return _PYTHON.fullmatch(self.label) is not None

    def code(self, text: str) -> str:
        lines = re.split(r"\r\n|\r|\n", text[self.start : self.end])
        return "\n".join(_without_indent(line, self.indent) for line in lines)


def blocks(text: str) -> Iterator[Block]:
    """All blocks in order. An unclosed last block extends to the end of the text."""
    items: list[int] = []
    """Columns at which the contents of the open list items begin."""
    opened: _Opened | None = None
    for line in _LINE.finditer(text):
        width, rest = _indented(line.group(1))
        if opened is not None:
            if opened.is_closed_by(width, rest):
                yield opened.until(line.start(), closed=True)
                opened = None
        elif rest:
            width, rest = _into_items(items, width, rest)
            fence = _OPENING.match(rest) if width - _last(items) < _FURTHER else None
            if fence is not None:
                opened = _Opened(
                    fence[1] or fence[3],
                    (fence[2] or fence[4] or "").strip(),
                    line.end(),
                    width,
                    _last(items),
                )
    if opened is not None:
        yield opened.until(len(text), closed=False)


@dataclass(frozen=True)
class _Opened:
    fence: str
    info: str
    start: int
    indent: int
    outer: int
    """Column at which the contents of the enclosing list item begin."""

    def is_closed_by(self, width: int, rest: str) -> bool:
        return (
            rest.startswith(self.fence)
            and width - self.outer < _FURTHER
            and not rest.rstrip(" \t").strip(self.fence[0])
        )

    def until(self, end: int, *, closed: bool) -> Block:
        return Block(self.info, self.start, end, self.indent, closed)


def _into_items(items: list[int], width: int, rest: str) -> tuple[int, str]:
    """Closes the list items that the line ends and opens the items that it begins. Returns the column and the remaining
    text."""
    while items and width < items[-1]:
        items.pop()
    for _ in range(_DEEPEST):
        item = _ITEM.match(rest) if width - _last(items) < _FURTHER else None
        if item is None:
            break
        spaces, rest = _indented(rest[item.end() :])
        width += item.end()
        items.append(width + (spaces if rest and spaces <= _FURTHER else 1))
        width += spaces
    return width, rest


def _last(items: list[int]) -> int:
    return items[-1] if items else 0


def _indented(line: str) -> tuple[int, str]:
    """Column at which the text of a line begins, and the text."""
    rest = line.lstrip(" \t")
    space = line[: len(line) - len(rest)]
    return len(space.expandtabs(4)) if "\t" in space else len(space), rest


def _without_indent(line: str, columns: int) -> str:
    at = column = 0
    while column < columns and line[at : at + 1] in (" ", "\t"):
        column += 4 - column % 4 if line[at] == "\t" else 1
        at += 1
    return " " * (column - columns) + line[at:]
