"""Regular expressions that users write, matched in a process of its own.

A pattern such as `(a+)+b` can take longer than the universe has, Python's matcher cannot be interrupted, and
while it runs no other thread does. So one small process does the matching, under a limit of CPU time that the
kernel enforces: it dies in the match that goes over it, and the next match starts a new one.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

from rondo.base.environ import minimal
from rondo.base.errors import Unavailable

SECONDS = 1.0
"""Of CPU time, so that a busy machine fails nobody's pattern."""

_WORKER = """
import json, re, signal, sys
signal.signal(signal.SIGPROF, signal.SIG_DFL)
for line in sys.stdin:
    pattern, text, seconds = json.loads(line)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    found = re.fullmatch(pattern, text, re.DOTALL) is not None
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(int(found), flush=True)
"""


class Matcher:
    """Safe to call from several threads; one match runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fullmatch(self, pattern: str, text: str, seconds: float = SECONDS) -> bool:
        """Whether all of `text` matches, `.` taking newlines too. Too long a match is a `TimeoutError`."""
        question = json.dumps([pattern, text, seconds]).encode() + b"\n"
        with self._lock:
            for _ in range(2):  # the process may have been killed from outside since the last match
                answer, code = self._ask(question)
                if answer:
                    return answer == b"1\n"
                if code == -signal.SIGPROF:
                    raise TimeoutError(f"the pattern {pattern!r} took more than {seconds:g} s of CPU time")
        raise Unavailable(f"the process that matches the pattern {pattern!r} ended with code {code}.")

    def close(self) -> None:
        with self._lock:
            self._end(kill=True)

    def _ask(self, question: bytes) -> tuple[bytes, int]:
        if self._process is None:
            # A session of its own, so that Ctrl-C reaches only us; it ends when its input does.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=minimal(),
                start_new_session=True,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(question)
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        except BaseException:  # Ctrl-C in between: the answer would be taken for that of the next question
            self._end(kill=True)
            raise
        return answer, 0 if answer else self._end(kill=False)

    def _end(self, *, kill: bool) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if kill:
            process.kill()
        with (
            contextlib.suppress(BrokenPipeError),
            process,
        ):  # closes the pipes, of which one may hold a question
            pass
        return process.wait()


def _forget() -> None:
    """In a forked child: the process and its pipes are the parent's."""
    global _shared
    _shared = Matcher()


_shared = Matcher()
os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _shared.close())


def fullmatch(pattern: str, text: str) -> bool:
    """`Matcher.fullmatch` of the one process that all graders share."""
    return _shared.fullmatch(pattern, text)
