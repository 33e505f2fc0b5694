"""Validation of paths from user input."""

import errno
import os
from pathlib import Path

from rondo.base.errors import InvalidRequest

ROOM = "x" * 100
"""Reserved length: a folder is useless if the paths of its files are too long."""
SHOWN = 80


def path_of(text: str | Path, field: str) -> Path:
    """`text` with `~` expanded, whether the file exists or not; an impossible path is an error with the field's
    name."""
    try:
        path = Path(text).expanduser()
        os.lstat(path.absolute() / ROOM)
    except RuntimeError:
        user = str(text).partition("/")[0]
        raise _refused(text, field, f"there is no user {_shown(user)} with a home folder here") from None
    except ValueError:
        raise _refused(text, field, "it holds a character that no path may have") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _refused(text, field, "it is longer than the file system allows") from None
    return path


def _refused(text: str | Path, field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {_shown(str(text))} is no path: {reason}.", param=field)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
