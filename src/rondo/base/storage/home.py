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


def kernels_dir() -> Path:
    """Compiled kernels: `RONDO_KERNELS`, since several homes of a machine may share them, or a folder of the cache."""
    given = os.environ.get("RONDO_KERNELS")
    return path_of(given, "RONDO_KERNELS").absolute() if given else cache_dir() / "native"


def admin_key_file() -> Path:
    """The first admin key of this machine's gateway."""
    return home() / "admin-key"
