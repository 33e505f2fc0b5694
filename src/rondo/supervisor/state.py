"""State file of the running supervisor, for other processes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from rondo.base.errors import NotFound, Unavailable
from rondo.base.lock import lock, open_lock
from rondo.base.storage.home import home

POLL_SECONDS = 0.1


def lock_file() -> Path:
    return home() / "supervisor.lock"


def state_file() -> Path:
    return home() / "supervisor.json"


def running_state() -> dict[str, Any] | None:
    """State of the supervisor of this RONDO_HOME; None if none runs."""
    if not lock_file().exists():
        return None
    handle = open_lock(lock_file())
    try:
        if lock(handle):
            return None
    finally:
        os.close(handle)
    try:
        state: dict[str, Any] = json.loads(state_file().read_text())
    except (OSError, ValueError):
        return {"pid": None, "url": "", "parts": []}  # it has just begun
    return state


def stop_running(seconds: float) -> int:
    """Ends the supervisor of this RONDO_HOME and waits for it; its process id."""
    state = running_state()
    if state is None or state["pid"] is None:
        raise NotFound(f"Nothing that `rondo up` started is running with RONDO_HOME={home()}.")
    pid: int = state["pid"]
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while running_state() is not None:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"The supervisor (process {pid}) has not ended after {seconds:g} s: kill it, or wait."
            )
        time.sleep(POLL_SECONDS)
    return pid
