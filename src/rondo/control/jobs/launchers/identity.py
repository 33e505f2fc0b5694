"""Identity of the place whose jobs are processes of one machine: it survives another hostname, as after the restart of
a container."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from functools import cache
from pathlib import Path

from rondo.base.errors import RondoError
from rondo.base.storage.home import home

FILE = "identity"


def identity() -> str:
    """The text in `RONDO_HOME/identity`, which the first caller writes; the hostname if it cannot be written."""
    place = home() / FILE
    with contextlib.suppress(OSError, RondoError):
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".{FILE}.{secrets.token_hex(8)}")
        if not place.exists():
            new.write_text(secrets.token_hex(8) + "\n")
            with contextlib.suppress(FileExistsError):
                os.link(new, place)  # the first of several callers wins
            new.unlink()
        return place.read_text().strip() or socket.gethostname()
    return socket.gethostname()


@cache
def boot() -> str:
    """Identity of this start of the machine."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
