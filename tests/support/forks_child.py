"""What a fork does: it becomes the process that its client stands for."""

from __future__ import annotations

import atexit
import os
import random
import runpy
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import NoReturn

UNBUFFERED = "PYTHONUNBUFFERED"


def become(
    arguments: list[str], environment: dict[str, str], folder: str, ignored: list[int], program: str
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in ignored:
            signal.signal(each, signal.SIG_IGN)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _streams()
        random.seed()
        _numpy().random.seed()
        sys.executable = program
        code = _code(arguments)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(_ended(code))


def _numpy() -> ModuleType:
    import numpy

    return numpy


def _streams() -> None:
    through = bool(os.environ.get(UNBUFFERED))
    for name, file in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        errors = "backslashreplace" if file == 2 else None
        stream = open(file, "w" if file else "r", errors=errors, closefd=False)  # noqa: SIM115 until the end
        if file:
            stream.reconfigure(line_buffering=file == 2 or stream.isatty(), write_through=through)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _code(arguments: list[str]) -> int:
    """The exit code of Python with these arguments."""
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    kind, *rest = arguments[1:]
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        module = ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *rest[1:]]
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # imported already
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def _ended(code: int) -> int:
    """As an interpreter ends, but for what it frees."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return code or 120
    return code
