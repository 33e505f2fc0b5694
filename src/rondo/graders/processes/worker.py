"""Worker process of `pool.py`: reads one call per line of JSON on standard input and writes two lines for each.

The first line, `begun`, marks the end of the import; the time limit counts from there. The process ends at the end of
its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rondo.base.entry import load_entry
from rondo.base.errors import RondoError

GRACE_SECONDS = 5.0
"""Delay after which the kernel ends an overdue call, in case the parent, which normally ends it, is gone."""


def main(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # output of libraries is not part of an answer
    os.dup2(nowhere, 2)
    for line in sys.stdin.buffer:
        for answer in _answers(line):
            answers.write(answer + b"\n")
            answers.flush()


def _answers(line: bytes) -> Iterator[bytes]:
    begun = False
    try:
        name, arguments, seconds, variables = json.loads(line)
        with _environment(variables):
            function: Any = load_entry(name, "function")
            yield b"begun"
            begun = True
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
            value = function(*arguments)
        yield json.dumps({"value": value}).encode()
    except RondoError as error:
        yield from _failed(begun, [type(error).__name__, error.message, error.param])
    except Exception as error:  # any exception of a grader is an answer
        yield from _failed(begun, [type(error).__name__, str(error)[:2000], None])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of one call, removed after it."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _failed(begun: bool, error: list[str | None]) -> list[bytes]:
    return [*([] if begun else [b"begun"]), json.dumps({"error": error}).encode()]


if __name__ == "__main__":
    main(int(sys.argv[1]))
