"""Child processes: how they start, answer, stop, and how errors describe their end.

Each child has a session of its own, so that Ctrl-C in a terminal reaches this process alone, which stops its children
in order. Killing a child kills everything that it started in its session's process group.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PYTHON_MAIN = """import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from {module} import {function}
{function}(*sys.argv[1:])"""

Stream = int | IO[Any] | None


def start(
    command: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    pass_fds: Sequence[int] = (),
    end_with_parent: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, with no input unless given.

    With `end_with_parent` the kernel kills the child when the thread that started it ends (Linux only).
    """
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=_end_with_parent() if end_with_parent else None,
    )


def python_call(function: str, *arguments: str) -> list[str]:
    """Command that calls `module:function` with text arguments, in a Python with the same module path."""
    module, _, name = function.partition(":")
    main = _PYTHON_MAIN.format(module=module, function=name)
    return [sys.executable, "-c", main, *arguments, json.dumps(list(map(str, sys.path)))]


def stop(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask the child to end (SIGTERM), and kill its process group if it has not ended after `seconds`."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and its process group, including members that outlived it, and reap the child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def leave(code: int) -> NoReturn:
    """End this process with all that an exit of Python does, except for the destruction of every object.

    That takes a second of CPU time once torch is imported, and the kernel frees the same memory at once.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def exit_reason(code: int) -> str:
    """How a process with this return code ended, as the predicate of an error message."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def last_line(output: str | bytes, limit: int) -> str:
    """Last line of a process's output, at most `limit` characters; usually the exception of a traceback."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    lines = text.strip().splitlines()
    return lines[-1][:limit] if lines else ""


class LineWorker:
    """A child that answers each line of input with one line of output.

    It starts with the first question, and again with the first question after it ended. Not thread-safe.
    """

    def __init__(
        self, command: Sequence[str], *, stderr: Stream = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._start = partial(
            start, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(self, question: bytes) -> tuple[bytes, int]:
        """The answer, and 0; or nothing and the return code of the child, which ended instead of answering."""
        if self._process is None:
            self._process = self._start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(question)
            stdin.flush()
            answer: bytes = stdout.readline()
        except BrokenPipeError:
            answer = b""
        except BaseException:  # an interrupt: the next question would get the answer to this one
            self.close()
            raise
        return answer, 0 if answer else self._reap()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def _reap(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(BrokenPipeError), process:  # closes the pipes; one may hold a question
            pass
        return process.wait()


def _end_with_parent() -> Callable[[], None]:
    """To be called in the child. The library is opened before the fork, which other threads may do at any moment."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return arrange
