"""docs/terminal.md has a capture of each verb, within 80 columns."""

import re
from pathlib import Path

from docs.terminal_page import screen
from rondo.cli.main import VERBS

PAGE = Path(__file__).parents[2] / "docs" / "terminal.md"
BLOCK = re.compile(r"^```text\n(.*?)^```$", re.M | re.S)
WITHOUT = {"completion", "gateway", "worker"}
"""Verbs whose output is a script or a log."""
LONGEST = 80


def test_every_verb_is_captured_within_80_columns() -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.splitlines()]
    assert [line for line in lines if len(line) > LONGEST and not _is_path(line)] == []
    verbs = {block.split()[2] for block in blocks if block.startswith("$ rondo ")}
    assert set(VERBS) - verbs <= WITHOUT
    assert not [block for block in blocks if "Traceback" in block]


def _is_path(line: str) -> bool:
    """Whether the line is as long because of a path with a hash or a command, which must not be divided, or a line of
    a log."""
    return (
        re.search(r"^  curl |/[0-9a-f]{40,64}|^\{\"time\": |^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d ", line)
        is not None
    )


def test_the_screen_after_erased_and_overwritten_lines() -> None:
    assert screen("a\r\n50%\r100%\r\n\x1b[1mbold\x1b[0m\r\n") == ["a", "100%", "bold", ""]
    assert screen("wait\r\x1b[2Kdone\n") == ["done", ""]
    assert screen("one\r\ntwo\r\n\x1b[2A\x1b[2KONE\r\n") == ["ONE", "two", ""]
