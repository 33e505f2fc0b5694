"""Compiles each C file of `native/` into a library, cached by source, compiler and CPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from rondo.base.lock import locked
from rondo.base.storage.home import kernels_dir
from rondo.base.telemetry.activity import activity
from rondo.base.telemetry.log import get_logger
from rondo.ops.native.build.level import cpu_flags, level, level_flags

log = get_logger(__name__)

# Not -ffast-math: at link time it would switch the whole process to flush denormals to zero. Sums must not be
# reordered either: a row's bits would depend on the loop that computes it. bf16 numbers are moved as floats,
# two at a time.
FLAGS = [
    *("-O3", "-fPIC", "-shared", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fno-strict-aliasing"),
]
ROOT = Path(__file__).parents[1]
"""Root of the C files, one folder for each kind of operation; their `#include` lines are relative to it."""
SOURCES = {file.stem: file for file in sorted(ROOT.glob("*/*.c"))}
SECONDS = 300
"""Timeout of the compiler. One file takes 2 to 5 s of CPU time, and many times that on a busy machine."""
PATIENCE = 60
"""Seconds to wait for another process that compiles the same file."""


def compiler() -> list[str]:
    """The command that compiles C; empty without a compiler, or with `RONDO_NATIVE=0`."""
    if os.environ.get("RONDO_NATIVE", "1") == "0":
        return []
    found = shutil.which("cc") or shutil.which("gcc")
    return shlex.split(os.environ.get("CC", "")) or ([found] if found else [])


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The compiled library; None without a C compiler, or if it fails. `ahead.py` reports missing kernels at the
    start."""
    command = compiler()
    if not command:
        return None
    source = SOURCES[name]
    try:
        return ctypes.CDLL(str(_compiled(source, command)))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning(
            "a kernel could not be compiled: the slower one serves in its place until the next start",
            extra={"kernel": name, "why": _why(error)},
        )
        return None


def _why(error: Exception) -> str:
    """The error with the first error line of the compiler's output, if any."""
    said = getattr(error, "stderr", None) or b""
    lines = [line for line in said.decode(errors="replace").splitlines() if "error" in line]
    return ": ".join([str(error), *lines[:1]])


def _compiled(source: Path, command: list[str]) -> Path:
    texts = [file.read_text() for file in (source, *sorted(ROOT.glob("*/*.h")))]
    # Machines with different CPUs may share a home folder.
    cpu = cpu_flags() or {platform.processor()}
    identity = "\0".join([*texts, *command, *FLAGS, *level_flags(), platform.machine(), *sorted(cpu)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = kernels_dir() / f"{source.stem}-{level()}-{digest}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # One process compiles while others wait for its result. A process that waits too long compiles too.
    lock = locked(target.with_name(f"{source.stem}.lock"), PATIENCE, required=False)
    with activity("compiling kernels for this CPU, once"), lock:
        if not target.is_file():
            _compile(source, command, target)
    return target


def _compile(source: Path, command: list[str], target: Path) -> None:
    """Compiles into a temporary file, which is renamed when complete, so that no process loads a partial library."""
    handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".partial")
    os.close(handle)
    try:
        subprocess.run(
            [*command, *FLAGS, *level_flags(), f"-I{ROOT}", str(source), "-o", partial, "-lm"],
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
