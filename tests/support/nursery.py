"""Real processes to be killed, each in milliseconds: forks of one that has imported what they need."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from support.launch import SOURCES, TESTS

SECONDS = 300.0
"""The first that computes with a kernel may have to compile it."""


class Nursery:
    """`imports` are modules. Its processes' standard error is ours."""

    def __init__(self, imports: Sequence[str]) -> None:
        path = os.pathsep.join([str(SOURCES), str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.nursery", *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def start(self, work: str, *arguments: Any, environment: Mapping[str, str] | None = None) -> int:
        """`module:function` of plain arguments, in a process of its own: its number."""
        pid: int = self._ask({"work": work, "arguments": arguments, "environment": dict(environment or {})})
        return pid

    def wait(self, pid: int) -> int:
        """The exit code; below 0 it was a signal."""
        code: int = self._ask({"wait": pid})
        return code

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        there, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        assert there, f"no answer within {SECONDS:g} s to {question}"
        return json.loads(self._process.stdout.readline())


def _serve(imports: Sequence[str]) -> None:
    for name in imports:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the work prints is no answer
    for question in _lines():
        if "wait" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _work(**question)
        print(answer, file=answers, flush=True)


def _lines() -> Iterator[dict[str, Any]]:
    """Unbuffered: a child must not have what the next one is to be told."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as stream:
        while line := stream.readline():
            yield json.loads(line)


def _work(work: str, arguments: Sequence[Any], environment: Mapping[str, str]) -> None:
    code = 1
    try:
        os.environ |= environment
        module, _, name = work.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        code = 0
    except BaseException as error:
        print(f"{work}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1:])
