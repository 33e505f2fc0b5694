"""Execution of programs for a grader: each runs in its own sandbox, which contains no expected value.

A grader that calls `exec` on an answer exposes the grader's process to it: the reference in the callers' frames and the
pipe for the verdict. `run_program` executes the answer in another process and returns plain values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rondo.base.errors import ConfigError
from rondo.graders.execution.code import extract
from rondo.graders.sandbox import SandboxLimits, SandboxRun, WorkerSilent
from rondo.graders.sandbox.inside.program import ProgramResult, request, result
from rondo.graders.sandbox.isolation import require
from rondo.graders.sandbox.shared import shared

RunScript = Callable[[str, bytes, SandboxLimits, bytes | None], SandboxRun]


def run_program(
    code: str, stdin: str = "", call: tuple[Any, ...] | None = None, seconds: float = 10.0
) -> ProgramResult:
    """Runs `code`, a program or an answer with a fenced program, with `stdin` as its standard input. `call`, a
    function's name with a list of arguments (and a dict of keyword arguments), calls a function of the program.

    Raises an error, without a result, if load on the machine prevented the program from running.
    """
    require()
    message = json.dumps(request(code, stdin, call, seconds)).encode()
    told = serve(message, lambda *asked: shared().run(*asked))
    if told.get("why") == "busy":
        raise WorkerSilent("other work on this machine kept the program from running.")
    return result(told)


def serve(message: bytes, run: RunScript) -> dict[str, Any]:
    """Serves a request in the format of `request`, from an untrusted process."""
    try:
        asked = json.loads(message)
        code, given, call = str(asked["code"]), str(asked["stdin"]).encode(errors="replace"), asked["call"]
        limits = replace(SandboxLimits(), seconds=float(asked["seconds"]))
    except ConfigError as error:
        return {"refused": f"run_program: {error.message}"}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"refused": "run_program: a request that cannot be read"}
    called = None if call is None else json.dumps(call).encode()
    done = run(extract(code) or "", given, limits, called)
    return {
        "why": done.why,
        "code": done.code,
        "output": done.output.decode(errors="replace"),
        "errors": done.errors.decode(errors="replace"),
        "value": done.value.decode(errors="replace"),
        "cpu_seconds": done.cpu_seconds,
    }
