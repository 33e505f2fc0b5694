"""Programs that a grader runs: apart from what is expected and from the verdict."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import ConfigError
from rondo.graders import Sample, Score, run_program
from rondo.graders.execution.programs import serve
from rondo.graders.execution.python import PythonGrader
from rondo.graders.registry import grader_of
from rondo.graders.sandbox import SandboxRun
from rondo.graders.sandbox.isolation import isolation

walled = pytest.mark.skipif(not isolation().available, reason=isolation().about)

BY_EXEC = """
def grade(sample, item):
    names = {}
    exec(sample["output_text"], names)
    return float(names["secret"]() == item["answer"])
"""
BY_HELPER = """
from rondo.graders import run_program

def grade(sample, item):
    run = run_program(sample["output_text"], call=("secret", []), seconds=5)
    return float(run.returned and run.value == item["answer"])
"""
BY_FUNCTION = """
def grade(item, answer):
    return float(run_program(answer, call=("secret", [])).value == item["answer"])
"""
READS_THE_REFERENCE = """
import sys
def secret():
    frame = sys._getframe()
    while frame:
        if "item" in frame.f_locals: return frame.f_locals["item"]["answer"]
        frame = frame.f_back
"""
WRITES_THE_VERDICT = """
import json, os, sys
frame, mark = sys._getframe(), ""
while frame:
    mark = frame.f_globals.get("_asked", {}).get("mark", mark)
    frame = frame.f_back
def secret():
    for handle in range(3, 64):
        try: os.write(handle, (mark + json.dumps(1.0)).encode())
        except OSError: pass
    os._exit(0)
"""
CHANGES_THE_GRADER = """
import builtins
builtins.float = lambda value: 1
def secret(): return 0
"""
EQUAL_TO_ALL = """
class Equal:
    __eq__ = lambda self, other: True
def secret(): return Equal()
"""
FORGERS = {
    "reads the reference": READS_THE_REFERENCE,
    "writes the verdict": WRITES_THE_VERDICT,
    "changes the grader": CHANGES_THE_GRADER,
    "is equal to all": EQUAL_TO_ALL,
    "looks into every object": """
import gc
def secret():
    for each in gc.get_objects():
        if isinstance(each, dict) and isinstance(each.get("answer"), int): return each["answer"]
""",
}


def score(source: str, answer: str, **fields: Any) -> Score:
    grader = grader_of({"type": "python", "name": "mine", "source": source, **fields})
    sample = Sample("", answer, metadata={"item": {"answer": 271828}})
    return asyncio.run(grader.score(sample))


@walled
@pytest.mark.parametrize("name", FORGERS)
def test_forgers_earn_by_exec_and_not_by_the_helper(name: str) -> None:
    if name != "looks into every object":
        assert score(BY_EXEC, FORGERS[name], allow_exec=True).total == 1.0
    found = score(BY_HELPER, FORGERS[name])
    assert (found.outcome, found.total) == ("ok", 0.0), found


@walled
def test_a_right_answer_earns_by_the_helper() -> None:
    right = "Here:\n```python\ndef secret(): return 271828\n```\nIt returns\n```\n271828\n```"
    assert score(BY_HELPER, right) == Score("ok", 1.0)
    assert score(BY_HELPER, "def secret(): return 3") == Score("ok", 0.0)


@walled
@pytest.mark.parametrize(
    "answer",
    [
        "def secret():\n    while True: pass",
        "import time; time.sleep(1000)",
        "import os; os.kill(-1, 9); os.kill(1, 9)",
        "def secret(): return 'x' * (20 << 20)",
        "def secret(x): return 1",
        "def secret(): raise SystemExit(0)",
        "import decimal\ndef secret(): return [decimal.Decimal('sNaN')]",
        "import os\ndef secret(): os.write(5, b'[[[['); os._exit(0)",
        "import os\ndef secret(): os.write(5, b'{\"set\": [[1]]}'); os._exit(0)",
        "def secret():\n    x = []\n    x.append(x)\n    return x",
        "def (",
        "",
    ],
)
def test_whatever_an_answer_does_the_grader_goes_on(answer: str) -> None:
    source = BY_HELPER.replace("seconds=5", "seconds=1") + "    "
    found = score(source, answer)
    assert (found.outcome, found.total) == ("ok", 0.0) or found.outcome == "timeout", found


@walled
def test_what_the_helper_returns() -> None:
    source = """
import json
from rondo.graders import run_program, ProgramResult

def grade(sample, item):
    run = run_program("import sys; print(input()); sys.exit('bad')", stdin="in")
    assert isinstance(run, ProgramResult)
    assert (run.why, run.code, run.output, run.errors, run.ok) == ("exit", 1, "in\\n", "bad\\n", False), run
    for value in (None, [1, (2, {3})], {"a": b"x"}, 10**40, "\\ud800"):
        run = run_program("def same(*args, **kwargs): return args, kwargs", call=("same", [value], {"k": value}))
        assert run.value == ((value,), {"k": value}), run
    run = run_program("class S:\\n def f(self): return 1", call=("S.f", []))
    assert run.ok and run.returned and run.value == 1
    assert not run_program("x = 1", call=("f", [])).returned
    try:
        run_program("x", seconds=-1)
    except ValueError as error:
        assert "above 0" in str(error)
    else:
        raise AssertionError
    return 1.0
"""
    assert score(source, "") == Score("ok", 1.0)


@walled
def test_the_helper_outside_of_a_grader() -> None:
    """For functions of the type `function`, and for trying it out."""
    run = run_program("def add(a, b=0): print(a); return a + b", call=("add", [1], {"b": 2}))
    assert (run.returned, run.value, run.output) == (True, 3, "1\n")
    assert run_program("print(input())", "a").output == "a\n"
    with pytest.raises(TypeError, match="are texts"):
        run_program(b"x")  # type: ignore[arg-type]


@walled
def test_the_helper_in_a_function_of_a_user_s(tmp_path: Path) -> None:
    file = tmp_path / "grades.py"
    file.write_text(f"from rondo.graders import run_program\n{BY_FUNCTION}")
    grader = grader_of({"type": "function", "function": f"{file}:grade", "seconds": 60.0})
    for answer, total in (("def secret(): return 271828", 1.0), (READS_THE_REFERENCE, 0.0)):
        found = asyncio.run(grader.score(Sample("", answer, metadata={"item": {"answer": 271828}})))
        assert (found.outcome, found.total) == ("ok", total), found


@walled
@pytest.mark.parametrize(
    "ending",
    [
        "import os; os.write(5, b'\\xff' * 100)",
        "import os, struct; os.write(5, struct.pack('=I', 4) + b'[[[['); run_program('x')",
        "import os; os.close(4); run_program('print(1)')",
        "import os, threading; threading.Timer(0.3, os._exit, [3]).start(); run_program('while True: pass')",
        "import threading, time; threading.Thread(target=run_program, args=['while True: pass']).start()\n"
        "    import os; time.sleep(0.2); os._exit(0)",
    ],
)
def test_a_grader_that_breaks_off_leaves_nothing_behind(ending: str) -> None:
    source = f"from rondo.graders import run_program\ndef grade(sample, item):\n    {ending}\n    return 'x'"
    assert score(source, "").outcome in ("error", "timeout")
    assert score("def grade(sample, item): return 1", "") == Score("ok", 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "exec(sample['output_text'])",
        "eval(sample['output_text'])",
        "code = compile(sample['output_text'], 'a', 'exec')",
        "import builtins; builtins.exec(sample['output_text'])",
        "import builtins as b; b.exec(sample['output_text'])",
        "import timeit; timeit.timeit(sample['output_text'])",
        "from builtins import eval as e; e(sample['output_text'])",
        "__builtins__['exec'](sample['output_text'])",
        "import runpy; runpy.run_path('a.py')",
        "from importlib import import_module",
        "list(map(exec, [sample['output_text']]))",
    ],
)
def test_sources_that_run_answers_themselves_are_refused(line: str) -> None:
    source = f"def grade(sample, item):\n    {line}\n    return 1"
    with pytest.raises(ConfigError, match=r"run_program.*allow_exec") as wrong:
        grader_of({"type": "python", "source": source})
    assert wrong.value.param == "grader.source"
    if isolation().available:
        assert grader_of({"type": "python", "source": source, "allow_exec": True})


@walled
@pytest.mark.parametrize(
    "source",
    [
        "import re\ndef grade(sample, item): return len(re.compile('a').findall(sample['output_text']))",
        "from re import compile\ndef grade(sample, item): return len(compile('a').findall('a'))",
        "import ast\ndef grade(sample, item): return ast.literal_eval(sample['output_text'])",
        "class Model:\n    def eval(self): return 1\ndef grade(sample, item): return Model().eval()",
        "def eval(text): return 1\ndef grade(sample, item): return eval('x')",
        "def grade(sample, item): return float('exec' in sample['output_text'])",
    ],
)
def test_other_sources_are_not(source: str) -> None:
    assert PythonGrader(source)


@walled
def test_a_program_that_gets_no_cpu_time_is_no_verdict_of_the_grader() -> None:
    asked = json.dumps({"code": "x", "stdin": "", "seconds": 1.0, "call": None}).encode()
    told = serve(asked, lambda *_: SandboxRun("busy", 137, b"", b"", 0.1))
    assert told["why"] == "busy"


@pytest.mark.parametrize(
    "message", [b"", b"[]", b"\xff", b"{}", b'{"code": 1}', b"[" * 100_000, b'{"seconds": "x"}']
)
def test_requests_that_are_none(message: bytes) -> None:
    def run(*_: object) -> SandboxRun:
        raise AssertionError("it is not run")

    assert "refused" in serve(message, run)
