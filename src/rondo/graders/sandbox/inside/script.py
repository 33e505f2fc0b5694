"""Runs a program as a script: descriptors 0, 1 and 2 are its input, output and errors, 3 has its source."""

import atexit
import contextlib
import linecache
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable

NAME = "main.py"
_OWN_FRAMES = 3
"""Frames of the sandbox in a traceback: `run`, its action and `execute`."""


def life() -> int:
    source = read_all(3)
    open_streams()
    forget_harness()
    return run(lambda: execute(source, NAME, vars(new_module("__main__"))))


def run(action: Callable[[], None]) -> int:
    """Returns the exit code that Python would return."""
    try:
        action()
        code = 0
    except SystemExit as end:
        code = _code(end)
    except BaseException as error:
        _show(error)
        code = 1
    return _finish(code)


def read_all(handle: int) -> str:
    """Reads a file from its beginning, independent of earlier reads, and closes it."""
    with open(handle, "rb") as file:
        return os.pread(handle, os.fstat(handle).st_size, 0).decode(errors="replace") if file else ""


def open_streams() -> None:
    # They live as long as the process.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def forget_harness() -> None:
    """Removes the sandbox's modules. Not for safety: a program may have a module of the same name."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "inside"]:
        del sys.modules[name]
    sys.argv = [NAME]


def new_module(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module)["__builtins__"] = __builtins__
    return module


def execute(source: str, name: str, names: dict[str, object]) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec", dont_inherit=True), names)


def _show(error: BaseException) -> None:
    own = error.__traceback__
    for _ in range(_OWN_FRAMES):
        own = own and own.tb_next
    with contextlib.suppress(Exception):  # the program may have broken its own error output
        traceback.print_exception(type(error), error, own)


def _code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    with contextlib.suppress(Exception):
        print(end.code, file=sys.stderr)
    return 1


def _finish(code: int) -> int:
    """Ends as Python does: joins threads, runs the program's exit handlers, flushes its output."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:
        _show(error)
        return code or 120
    return code
