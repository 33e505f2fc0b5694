"""User-defined regular expressions, matched in a separate process.

A pattern such as `(a+)+b` can take exponential time, Python's matcher cannot be interrupted, and it blocks all other
threads. So one small process does the matching, under a limit of CPU time that the kernel enforces: a match over the
limit ends the process, and the next match starts a new one.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading

from rondo.base.environ import minimal
from rondo.base.errors import Unavailable
from rondo.base.process import LineWorker

SECONDS = 1.0
"""Limit of CPU time in seconds. Wall time would fail patterns on a busy machine."""

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


class PatternMatcher:
    """Safe to call from several threads; one match runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker = LineWorker(
            [sys.executable, "-I", "-S", "-c", _WORKER], stderr=subprocess.DEVNULL, env=minimal()
        )

    def fullmatch(self, pattern: str, text: str, seconds: float = SECONDS) -> bool:
        """Whether all of `text` matches; `.` also matches newlines. A match over the limit raises `TimeoutError`."""
        question = json.dumps([pattern, text, seconds]).encode() + b"\n"
        with self._lock:
            for _ in range(2):  # the process may have been killed from outside since the last match
                answer, code = self._worker.ask(question)
                if answer:
                    return answer == b"1\n"
                if code == -signal.SIGPROF:
                    raise TimeoutError(f"the pattern {pattern!r} took more than {seconds:g} s of CPU time")
        raise Unavailable(f"the process that matches the pattern {pattern!r} ended with code {code}.")

    def close(self) -> None:
        with self._lock:
            self._worker.close()


def _forget() -> None:
    """Runs in a forked child: the process and its pipes belong to the parent."""
    global _shared
    _shared = PatternMatcher()


_shared = PatternMatcher()
os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _shared.close())


def fullmatch(pattern: str, text: str) -> bool:
    """`PatternMatcher.fullmatch` of the shared process."""
    return _shared.fullmatch(pattern, text)
