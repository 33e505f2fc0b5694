"""A `python` whose processes are forks of one that has imported torch and all of Rondo, since these imports cost many
times what most commands do. `python()` is its path, to be used in place of `sys.executable`.

The process started is a small client (`forks_client.py`). Its fork has its arguments, environment, folder and open
files, gets the signals that it gets, and ends if it is killed; it ends as the fork does. `inner(pid)` is the fork's
number, for `kill -9` of the very process that computes. In the forks `sys.executable` is this `python` too.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.launch import SOURCES, TESTS
from support.waiting import wait_until

CLIENT = Path(__file__).with_name("forks_client.py")
PARENT = Path(__file__).with_name("forks_parent.py")


@functools.cache
def python() -> Path:
    """The parent of the forks starts now, and ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    program = folder / "python"
    program.write_text(f"#!{sys.executable} -IS\n{CLIENT.read_text()}")
    program.chmod(0o755)
    (folder / "real").symlink_to(sys.executable)
    log = (folder / "log").open("wb")
    parent = subprocess.Popen(
        [sys.executable, "-P", PARENT, folder],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=_without_rondo(os.environ)
        | {"PYTHONPATH": f"{SOURCES}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"},
        cwd="/",
        start_new_session=True,
    )
    atexit.register(_end, parent, folder)
    wait_until((folder / "socket").exists if parent.poll() is None else lambda: False, 240)
    return program


def inner(pid: int) -> int:
    """The fork of a client, or the number itself, if that process is none."""
    with contextlib.suppress(FileNotFoundError):
        return int(os.readlink(python().parent / str(pid)))
    return pid


def _without_rondo(environment: os._Environ[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("RONDO_")}


def _end(parent: subprocess.Popen[bytes], folder: Path) -> None:
    assert parent.stdin is not None
    parent.stdin.close()
    parent.wait()
    shutil.rmtree(folder, ignore_errors=True)
