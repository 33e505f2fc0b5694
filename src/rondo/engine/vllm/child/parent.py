"""In vLLM's processes: the end of whoever started them is theirs too, however it came.

A plug-in of vLLM's, which calls `watch` in each of its processes, and the program that a process of ours runs, so that
it watches before vLLM is imported. It is copied beside the other plug-in, and needs Python alone.
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
    """May be called several times in one process, and in the parent itself."""
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
    """Whether vLLM's processes are a group of their own; else it may be a shell's, with others in it."""
    try:
        return os.getpgid(parent) != os.getpgrp()
    except ProcessLookupError:
        return False


def _wait_for_end(parent: int) -> None:
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # another system, or an old one
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
    """vLLM's own, without importing it."""
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
    # What vLLM starts imports what is `__main__` here: vLLM's server, from now on.
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
