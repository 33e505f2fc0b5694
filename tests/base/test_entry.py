"""What is named as module:attribute."""

from pathlib import Path

import pytest

from rondo.base.entry import is_entry, load_entry, source_hash
from rondo.base.errors import ConfigError, NotFound


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("a:b", True), ("a/b.py:c_d", True), ("a", False), (":b", False), ("a:", False), ("a:b-c", False)],
)
def test_the_form(text: str, is_one: bool) -> None:
    assert is_entry(text) is is_one


def test_modules_and_files(tmp_path: Path) -> None:
    import math

    assert load_entry("math:pi", "x") == math.pi
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nCOUNT = []\n@dataclass\nclass Mine:\n    a: int = 1\n"
    )
    found = load_entry(f"{file}:COUNT", "x")
    assert load_entry(f"{file}:COUNT", "x") is found
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text("COUNT = [2]\n")
    assert load_entry(f"{other}:COUNT", "x") == [2]
    first = source_hash(f"{file}:COUNT")
    file.write_text("COUNT = [3]\n")
    assert source_hash(f"{file}:COUNT") != first
    assert source_hash("math:pi") is None or source_hash("math:pi")


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("math", ConfigError, "module:attribute"),
        ("math:ceill", NotFound, "Did you mean ceil"),
        ("no.such.module:x", NotFound, "Is it installed"),
        ("/nowhere/mine.py:x", NotFound, "no file"),
        ("{}/broken.py:x", ConfigError, "ZeroDivisionError"),
        ("{}/garbled.py:x", ConfigError, "SyntaxError"),
    ],
)
def test_what_is_not_there(text: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "garbled.py").write_text("def (\n")
    for _ in range(2):
        with pytest.raises(error, match=said) as wrong:
            load_entry(text.format(tmp_path), "rl.task")
        assert wrong.value.param == "rl.task"  # type: ignore[attr-defined]
