"""Tests a program from another process: descriptor 3 has the tests, 4 receives, 5 sends, 6 takes the verdict.

Only this process has the expected values; the program's return values are compared here, as values of Python's own
types.
"""

import json
import math
import os
import traceback
from typing import Any

from . import literal, suites, wire
from .errors import NotPassed
from .proxies import Awaitable, RemoteProgram
from .script import forget_harness, read_all

_LONGEST = 500


def life() -> int:
    exam = literal.decode(json.loads(read_all(3)))
    forget_harness()
    verdict = examine(exam, RemoteProgram(wire.MessagePipe(4, 5), exam["in_place"]))
    data = json.dumps(verdict).encode()
    while data:
        data = data[os.write(6, data) :]
    return 0


def examine(exam: dict[str, Any], program: RemoteProgram) -> dict[str, Any]:
    """`results` are pairs of passed and the reason; `broken` is the reason for a missing verdict."""
    try:
        files = [] if "calls" in exam else suites.prepare(exam["tests"])
    except suites.BrokenTests as error:
        return {"ran": False, "results": [], "broken": str(error)}
    try:
        outline = program.ask("outline")
        program.ask("load")
    except BaseException as error:
        return {"ran": False, "results": [[False, f"the program did not load: {short(error)}"]], "broken": ""}
    try:
        if "calls" in exam:
            results = [_call(program, call, exam["tolerance"]) for call in exam["calls"]]
        else:
            results = suites.Suite(program, files, exam["entry_point"], outline).run()
    except (NotPassed, suites.BrokenTests) as error:
        return {"ran": True, "results": [], "broken": str(error)}
    except BaseException as error:
        return {"ran": True, "results": [[False, short(error)]], "broken": ""}
    return {"ran": True, "results": [[passed, why[:_LONGEST]] for passed, why in results], "broken": ""}


def _call(program: RemoteProgram, call: dict[str, Any], tolerance: float) -> tuple[bool, str]:
    name = call["function"]
    try:
        owner, _, last = name.rpartition(".")
        function = program.ask("get", owner or last)
        if owner:  # "Solution.twoSum": a method of a new object
            function = getattr(function(), last)
        value = function(*call["args"], **call["kwargs"])
        if isinstance(value, Awaitable):
            value = program.ask("await", value)
    except NotPassed:
        raise
    except BaseException as error:
        return False, f"{name} raised {short(error)}"
    try:
        if same(value, call["expected"], tolerance):
            return True, ""
    except Exception as error:  # a value that cannot be compared, such as a signalling NaN
        return False, f"{name} gave a {type(value).__name__} that cannot be compared: {short(error)}"
    return False, f"{name} gave {_shown(value)}"


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether the values are equal. A tuple equals a list of the same values, since JSON has only lists; numbers are
    compared within `tolerance`."""
    if isinstance(expected, list | tuple):
        alike = isinstance(value, list | tuple) and len(value) == len(expected)
        return alike and all(same(*pair, tolerance) for pair in zip(value, expected))
    if isinstance(expected, dict):
        alike = isinstance(value, dict) and value.keys() == expected.keys()
        return alike and all(same(value[key], each, tolerance) for key, each in expected.items())
    if bool(value == expected):
        return True
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if math.isnan(expected):
            return math.isnan(value)
        return tolerance > 0 and math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    return False


def short(error: BaseException) -> str:
    try:
        return traceback.format_exception_only(error)[-1].strip()[:_LONGEST]
    except BaseException:
        return type(error).__name__


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_LONGEST]
    except BaseException:
        return f"a {type(value).__name__} that cannot be shown"
