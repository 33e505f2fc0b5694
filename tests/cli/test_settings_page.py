"""The reference of all settings is complete and up to date."""

from pathlib import Path

from rondo.cli.options.reference import leaves, page
from rondo.cli.options.tree import setting_keys

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: make settings"


def test_every_setting_has_one_row():
    rows = [
        line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `") and "`" in line
    ]
    settings = [row for row in rows if not row.startswith("-")]
    assert sorted(settings) == sorted(leaves(setting_keys()))
