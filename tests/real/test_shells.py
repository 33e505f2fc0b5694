"""Completion in zsh and fish. bash is everywhere, and in tests/cli/test_completion.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.shells import Shell, fish, zsh

pytestmark = pytest.mark.real

LINES = [
    ("rondo tra", "rondo train"),
    ("rondo serve de", "rondo serve demo"),
    ("rondo train sft --chec", "rondo train sft --checkpointing"),
    ("rondo train sft --decay=cos", "rondo train sft --decay=cosine"),
    ("rondo data prepare no", "rondo data prepare notes.txt"),
    ("rondo train sft --data=no", "rondo train sft --data=notes.txt"),
]


@pytest.mark.parametrize("shell", [zsh, fish])
@pytest.mark.parametrize(("typed", "shown"), LINES)
def test_a_line_is_completed(shell: Callable[[Path], Shell], typed: str, shown: str, tmp_path: Path):
    (tmp_path / "models" / "demo").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    shell(tmp_path).completes(typed, shown)
