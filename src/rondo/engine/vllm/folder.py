"""Temporary folder with the lifetime of its process. Folders of killed processes are removed at the next start."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from rondo.base.errors import StorageError
from rondo.base.lock import hold, locked_folder, remove_unheld
from rondo.base.storage.files import storage_error
from rondo.base.storage.home import home
from rondo.engine.vllm.child.plugins import write_plugins

PREFIX = "vllm-"
LONGEST = 80
"""Maximum length of the path in bytes: a socket address is limited to 107."""


class RunFolder:
    """A folder under `RONDO_HOME`, accessible to this user only; its `plugins` must be on the path of vLLM's Python."""

    def __init__(self) -> None:
        place = _place()
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(place)
            with locked_folder(place):  # another process must not sweep a folder before it is held
                _sweep(place)
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
                self._lock = hold(self.path)
            self.plugins = self.path / "plugins"
            self.plugins.mkdir()
            write_plugins(self.plugins)
        except OSError as error:
            raise storage_error(place, error) from error

    def variables(self) -> dict[str, str]:
        """Environment variables for vLLM's processes: the process to end with, and the folder to remove then."""
        return {"RONDO_VLLM_PARENT": str(os.getpid()), "RONDO_VLLM_FOLDER": str(self.path)}

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)


def _place() -> Path:
    own = home() / "run"
    if len(os.fsencode(own)) <= LONGEST:
        return own
    return Path(tempfile.gettempdir()) / f"rondo-{os.getuid()}"


def _check_owner(place: Path) -> None:
    if place.stat().st_uid != os.getuid():
        raise StorageError(
            f"{place} belongs to another user. Remove it, or set RONDO_HOME to a shorter path."
        )


def _sweep(place: Path) -> None:
    for left in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process removed it first, or the file system has no locks
            remove_unheld(left)
