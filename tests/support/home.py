"""A `RONDO_HOME` of a test's own."""

from pathlib import Path


def own_home(folder: Path) -> Path:
    """An empty home with its cache."""
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    return folder
