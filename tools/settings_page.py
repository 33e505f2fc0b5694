"""Writes docs/settings.md, the reference of all settings: `python tools/settings_page.py`."""

from __future__ import annotations

from pathlib import Path

from rondo.cli.options.reference import page

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
