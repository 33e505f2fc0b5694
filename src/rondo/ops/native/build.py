"""Compiles a C file next to this one into a library of its own name, once for each source, compiler and CPU."""

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

from rondo.base.home import cache_dir
from rondo.base.log import get_logger

log = get_logger(__name__)

# Not -ffast-math: at link time it would switch the whole process to flush denormals to zero.
FLAGS = [
    *("-O3", "-march=native", "-fPIC", "-shared", "-fopenmp"),
    *(
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fno-signed-zeros",
        "-fassociative-math",
        "-freciprocal-math",
    ),
]
SECONDS = 60


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The compiled library; None where `RONDO_NATIVE=0`, there is no C compiler, or it fails."""
    if os.environ.get("RONDO_NATIVE", "1") == "0":
        return None
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        log.info("no C compiler found: using the slower kernels. Install gcc for the fast ones.")
        return None
    source = Path(__file__).with_name(f"{name}.c")
    try:
        return ctypes.CDLL(str(_compiled(source, compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning(
            "a kernel could not be compiled: using the slower ones", extra={"kernel": name, "why": str(error)}
        )
        return None


def _compiled(source: Path, compiler: list[str]) -> Path:
    texts = [file.read_text() for file in (source, *sorted(source.parent.glob("*.h")))]
    identity = "\0".join([*texts, *compiler, *FLAGS, platform.machine(), _cpu_flags()])
    target = cache_dir() / "native" / f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once: each writes a file of its own, and the last rename wins.
    handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".partial")
    os.close(handle)
    try:
        command = [*compiler, *FLAGS, str(source), "-o", partial, "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def _cpu_flags() -> str:
    """A home folder may be shared by machines with different CPUs."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
