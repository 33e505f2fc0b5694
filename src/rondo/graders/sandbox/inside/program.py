"""Request and result of a program that a grader runs in a separate cage."""

import json
from dataclasses import dataclass
from typing import Any

from . import literal


@dataclass(frozen=True)
class ProgramResult:
    """Result of a program as plain values, built anew: no object here is the program's."""

    why: str
    """`exit` if the program ended by itself; else the limit that ended it: `cpu`, `wall`, `memory`, `output`."""
    code: int
    output: str
    errors: str
    returned: bool
    """The function was called and its value arrived."""
    value: Any
    cpu_seconds: float

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with code 0."""
        return self.why == "exit" and self.code == 0


def request(code: str, stdin: str, call: tuple[Any, ...] | None, seconds: float) -> dict[str, Any]:
    if not isinstance(code, str) or not isinstance(stdin, str):
        raise TypeError("run_program: code and stdin are texts")
    asked: dict[str, Any] = {"code": code, "stdin": stdin, "seconds": float(seconds), "call": None}
    if call is not None:
        name, args, *rest = call
        if not isinstance(name, str):
            raise TypeError("run_program: call is (name of the function, arguments)")
        kwargs = dict(rest[0]) if rest else {}
        asked["call"] = {
            "function": name,
            "args": literal.encode(list(args)),
            "kwargs": literal.encode(kwargs),
        }
    return asked


def result(told: dict[str, Any]) -> ProgramResult:
    """Raises `ValueError` if the request was refused."""
    if "refused" in told:
        raise ValueError(told["refused"])
    plain = {name: told[name] for name in ("why", "code", "output", "errors", "cpu_seconds")}
    try:
        return ProgramResult(**plain, returned=True, value=_value(told["value"]))
    except (
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ):  # the program may have written anything, or nothing
        return ProgramResult(**plain, returned=False, value=None)


def _value(written: str) -> Any:
    if '"decimal"' in written and "snan" in written.lower():
        raise ValueError("a signalling NaN raises where it is compared")
    return literal.decode(json.loads(written))
