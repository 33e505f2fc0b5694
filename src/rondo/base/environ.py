"""The environment of processes that run a user's programs: a list of harmless variables, and no API keys."""

from __future__ import annotations

import os
from collections.abc import Iterable

PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE"),
    *("LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Variables that programs need to start, to find their libraries and to print; none of them holds a secret."""


def minimal(names: Iterable[str] = ()) -> dict[str, str]:
    """The variables in `PASSED` and in `names` that this process has."""
    return {name: os.environ[name] for name in (*PASSED, *names) if name in os.environ}
