"""Location of Rondo's files: `RONDO_HOME`, or `~/.rondo`. Nothing here creates a folder."""

import os
from pathlib import Path

from rondo.base.storage.paths import path_of


def home() -> Path:
    return path_of(os.environ.get("RONDO_HOME") or "~/.rondo", "RONDO_HOME").absolute()


def models_dir() -> Path:
    return home() / "models"


def jobs_dir() -> Path:
    return home() / "jobs"


def cache_dir() -> Path:
    return home() / "cache"
