"""Where Rondo keeps things: `RONDO_HOME`, or `~/.rondo`. Nothing here creates a folder."""

import os
from pathlib import Path


def home() -> Path:
    return Path(os.environ.get("RONDO_HOME") or "~/.rondo").expanduser().absolute()


def models_dir() -> Path:
    return home() / "models"


def jobs_dir() -> Path:
    return home() / "jobs"


def cache_dir() -> Path:
    return home() / "cache"
