"""Compiles each C file of `native/` into a library of its own name, once for each source, compiler and CPU."""

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
from rondo.base.storage.home import cache_dir
from rondo.base.telemetry.log import get_logger
from rondo.ops.native.build.level import cpu_flags, level, level_flags

log = get_logger(__name__)

# Not -ffast-math: at link time it would switch the whole process to flush denormals to zero. Nor may sums be put in
# another order: a row's bits would depend on the loop that had it. Numbers in bf16 are moved as floats, two at a time.
FLAGS = [
    *("-O3", "-fPIC", "-shared", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fno-strict-aliasing"),
]
ROOT = Path(__file__).parents[1]
"""Where the C files are, one folder for each thing they compute; their `#include` lines start here."""
SOURCES = {file.stem: file for file in sorted(ROOT.glob("*/*.c"))}
SECONDS = 300
"""One file takes 2 to 5 s of CPU, and many times that on a busy machine; a compiler that hangs takes for ever."""
PATIENCE = 60
"""How long to wait for another process that compiles the same."""


def compiler() -> list[str]:
    """The command that compiles C here; empty where there is none, or `RONDO_NATIVE=0` says to do without."""
    if os.environ.get("RONDO_NATIVE", "1") == "0":
        return []
    found = shutil.which("cc") or shutil.which("gcc")
    return shlex.split(os.environ.get("CC", "")) or ([found] if found else [])


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The compiled library; None where there is no C compiler, or it fails. The start says which (`ahead.py`)."""
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
    """With the compiler's own first error, where it gave one."""
    said = getattr(error, "stderr", None) or b""
    lines = [line for line in said.decode(errors="replace").splitlines() if "error" in line]
    return ": ".join([str(error), *lines[:1]])


def _compiled(source: Path, command: list[str]) -> Path:
    texts = [file.read_text() for file in (source, *sorted(ROOT.glob("*/*.h")))]
    # A home folder may be shared by machines with different CPUs.
    cpu = cpu_flags() or {platform.processor()}
    identity = "\0".join([*texts, *command, *FLAGS, *level_flags(), platform.machine(), *sorted(cpu)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = cache_dir() / "native" / f"{source.stem}-{level()}-{digest}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # One process compiles while others wait for its result. A process that waits too long compiles too.
    with locked(target.with_name(f"{source.stem}.lock"), PATIENCE, required=False):
        if not target.is_file():
            _compile(source, command, target)
    return target


def _compile(source: Path, command: list[str], target: Path) -> None:
    """Into a file of its own, renamed when it is whole: nobody ever loads a part."""
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
