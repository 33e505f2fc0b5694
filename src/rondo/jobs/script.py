"""Programs of users as jobs: working folder, limits and environment of their process.

The program runs with the rights of the gateway's user, without a sandbox: submitting one needs the scope `code`.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rondo.base.environ import minimal
from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.storage.files import storage_error
from rondo.jobs.attempt import VARIABLE

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._ -]{0,127}){0,15}")
PASSED = (
    *(VARIABLE, "RONDO_HOME", "RONDO_BASE_URL", "RONDO_API_KEY", "RONDO_KERNELS", "OMP_NUM_THREADS"),
    *(
        "CUDA_VISIBLE_DEVICES",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_ENDPOINT",
        "WANDB_BASE_URL",
        "WANDB_MODE",
    ),
    *("AWS_ENDPOINT_URL", "AWS_REGION", "PYTHONUNBUFFERED"),
)
LIMITS = {
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "cpu_seconds": resource.RLIMIT_CPU,
}


def check_path(name: str, param: str) -> None:
    """Raises for a name that is no relative path below the working folder."""
    if NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{param}: {name[:200]!r} is no relative path: use letters, digits, '.', '_', '-' and '/'.",
            param=param,
        )


def execute(command: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
    """Replaces this process by the program, in its working folder and with its limits. Attempts of one job share the
    folder, so that a program can continue from its own files."""
    folder = _working_folder()
    for name, source in options.get("files", {}).items():
        check_path(name, "files")
        _place(Path(source), folder / name)
    os.chdir(folder)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, limit in LIMITS.items():
        if (value := options.get(name)) is not None:
            _lower(limit, int(value))
    program = sys.executable if command[0] in ("python", "python3") else command[0]
    sys.stdout.flush()
    try:
        os.execvpe(program, [program, *command[1:]], minimal(_passed()) | options.get("env", {}))
    except OSError as error:
        raise NotFound(f"{command[0]!r} cannot be executed: {error.strerror}.", param="command") from error


def _passed() -> list[str]:
    """Variables of a job are its own: its launcher chose them. Otherwise only harmless ones are passed."""
    return list(os.environ) if VARIABLE in os.environ else list(PASSED)


def working_folder(report: Path) -> Path:
    """Working folder of all attempts of a program, by the report of one of them."""
    return report.parent.parent / "work"


def _working_folder() -> Path:
    report = os.environ.get(VARIABLE)
    folder = Path.cwd() if report is None else working_folder(Path(report))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _place(source: Path, target: Path) -> None:
    if target.exists():
        return
    copy = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.replace(target)
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)


def _lower(limit: int, value: int) -> None:
    """A limit above the present one stays as it is."""
    _, most = resource.getrlimit(limit)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))
