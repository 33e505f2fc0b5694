"""Runs in vLLM's processes: ends them when their parent process ends for any reason.

It is a vLLM plug-in, which calls `watch` in each of vLLM's processes, and also the program that our child process runs,
so that it watches before vLLM is imported. It is copied next to the other plug-ins and needs only Python.
"""

from __future__ import annotations

import os
import re
import runpy
import select
import shutil
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path

SERVER = "vllm.entrypoints.openai.api_server"
SAYS_VERSION = "rondo: this is vLLM "
_watching = False


def watch() -> None:
    """Starts the watching thread. May be called several times in one process, and in the parent itself."""
    global _watching
    parent = int(os.environ.get("RONDO_VLLM_PARENT") or 0)
    if _watching or parent in (0, os.getpid()):
        return
    _watching = True
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    group = _has_group(parent)
    _wait_for_end(parent)
    shutil.rmtree(os.environ["RONDO_VLLM_FOLDER"], ignore_errors=True)
    if group:
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _has_group(parent: int) -> bool:
    """Whether vLLM's processes have their own process group; otherwise the group may be a shell's, with other processes
    in it."""
    try:
        return os.getpgid(parent) != os.getpgrp()
    except ProcessLookupError:
        return False


def _wait_for_end(parent: int) -> None:
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # another or an old operating system
        while _lives(parent):
            time.sleep(1)
        return
    select.select([handle], [], [])


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def version() -> str:
    """vLLM's version, without importing it."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        return ""
    file = Path(found.origin).with_name("_version.py")
    said = re.search(r"__version__ = .*['\"](.+)['\"]", file.read_text()) if file.exists() else None
    return said[1] if said else "unknown"


def main() -> None:
    watch()
    if found := version():
        print(f"{SAYS_VERSION}{found}", flush=True)
    # vLLM's child processes import the module that is `__main__` here: from now on vLLM's server.
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
