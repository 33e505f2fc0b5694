"""OpenAI's `python`: a grader's own source with `grade(sample, item)`, run in the sandbox."""

from __future__ import annotations

import ast
import json
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from rondo.base.errors import ConfigError
from rondo.graders.definition.templates import item_of, sample_of
from rondo.graders.execution.programs import serve
from rondo.graders.sandbox import SandboxLimits, SandboxRun, WorkerLost
from rondo.graders.sandbox.isolation import require
from rondo.graders.sandbox.shared import shared, threads
from rondo.graders.score import Outcome, Sample, Score
from rondo.graders.turns import in_turn

LONGEST = 256 * 1024
"""Maximum length of the source in characters, as in OpenAI's API."""
SECONDS = 30.0
_RUN_TEXT = ("exec", "eval", "compile", "__import__", "__builtins__")
_RUN_MODULES = ("runpy", "importlib", "code", "codeop", "doctest", "timeit", "cProfile", "profile")

_PROGRAM = """
import json, os, sys
_verdict = os.dup(1)
os.dup2(2, 1)  # what a grader prints is no verdict
_asked = json.load(sys.stdin)
_space = {"__name__": "grader"}
exec(compile(_asked["source"], "grader.py", "exec"), _space)
_value = float(_space["grade"](_asked["sample"], _asked["item"]))
os.write(_verdict, (_asked["mark"] + json.dumps(_value)).encode())
"""


@dataclass(frozen=True)
class PythonGrader:
    """The number that `grade` returns. Any other behaviour is a separate outcome."""

    source: str
    seconds: float = SECONDS
    """Limit of wall time and of CPU time per answer, in seconds."""
    packages: tuple[str, ...] = ()
    """Folders of packages that the source may import in addition to the standard library."""
    image_tag: str | None = None
    """Image of OpenAI's. It has no effect: the sandbox has Python's library and `packages`."""
    allow_exec: bool = False
    """Whether the source may call `exec`, `eval` and similar functions, which expose the verdict to an answer."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ConfigError(f"seconds is {self.seconds}; it must be above 0.", param="seconds")
        if len(self.source) > LONGEST:
            raise ConfigError(f"source has more than {LONGEST} characters.", param="source")
        _check(self.source, self.allow_exec)
        require()
        shared(self.packages)

    async def score(self, sample: Sample) -> Score:
        mark = secrets.token_hex(16)
        asked = {
            "source": self.source,
            "sample": sample_of(sample),
            "item": dict(item_of(sample)),
            "mark": mark,
        }
        given = json.dumps(asked).encode()

        def run(begin: Callable[[], None]) -> SandboxRun:
            begin()
            return shared(self.packages).grade(_PROGRAM, given, self._limits(), serve)

        try:
            return _score(await in_turn(threads(self.packages), run), mark)
        except WorkerLost as error:
            lost = str(error)[:500]
            return Score("error", 0.0, detail=lost, faults={"python_grader_server_error": lost})

    def _limits(self) -> SandboxLimits:
        return replace(SandboxLimits(), seconds=self.seconds, cpu_seconds=max(1, math.ceil(self.seconds)))


def _score(run: SandboxRun, mark: str) -> Score:
    if run.why in ("wall", "cpu", "busy"):
        return _failed("grade took too long", "timeout")
    output = run.output.decode(errors="replace")
    if not run.ok or not output.startswith(mark):
        last = run.errors.decode(errors="replace").strip().rpartition("\n")[2]
        why = {"memory": "too much memory", "output": "too much output"}.get(
            run.why, last or "it gave no number"
        )
        return _failed(f"grade failed: {why}"[:500])
    value = float(json.loads(output.removeprefix(mark)))
    if not math.isfinite(value):
        return _failed(f"grade returned {value}")
    return Score("ok", value)


def _failed(detail: str, outcome: Outcome = "error") -> Score:
    return Score(outcome, 0.0, detail=detail, faults={"python_grader_runtime_error": detail})


def _check(source: str, allow_exec: bool) -> None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"source is no Python: {error}.", param="source") from None
    if not any(isinstance(each, ast.FunctionDef) and each.name == "grade" for each in tree.body):
        raise ConfigError("source must define a function grade(sample, item).", param="source")
    own = {name for node in ast.walk(tree) for name in _bound(node)}
    found = next((name for node in ast.walk(tree) if (name := _runs_text(node)) and name not in own), None)
    if found and not allow_exec:
        raise ConfigError(
            f"source uses {found}, which gives an answer access to the reference and to the verdict. Run answers with "
            "`from rondo.graders import run_program`, or set allow_exec = true if it never runs one.",
            param="source",
        )


def _bound(node: ast.AST) -> list[str]:
    """Names that the source binds itself, as in `from re import compile`."""
    if isinstance(node, ast.ImportFrom) and node.module != "builtins":
        return [each.asname or each.name for each in node.names]
    return [node.name] if isinstance(node, ast.FunctionDef) else []


def _runs_text(node: ast.AST) -> str:
    """Name of the Python function that executes text; empty if the node does not."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in _RUN_TEXT:
            return name
        case ast.Attribute(value=ast.Name(id="builtins" | "__builtins__"), attr=name) if name in _RUN_TEXT:
            return f"builtins.{name}"
        case ast.Import(names=names) if any(each.name == "builtins" and each.asname for each in names):
            return "builtins under another name"
        case ast.ImportFrom(module="builtins", names=names):
            return next((f"builtins.{each.name}" for each in names if each.name in _RUN_TEXT), "")
        case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in _RUN_MODULES:
            return module
        case ast.Import(names=names):
            return next((each.name for each in names if each.name.partition(".")[0] in _RUN_MODULES), "")
    return ""
