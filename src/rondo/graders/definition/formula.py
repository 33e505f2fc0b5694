"""The formula of OpenAI's `multi`: `0.7 * answer + 0.3 * min(form, 1)`, parsed once and never executed as Python."""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import ConfigError

LONGEST = 10_000
DEEPEST = 100
"""Maximum nesting depth of operations."""

_BINARY: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_FUNCTIONS: dict[
    str, tuple[Callable[..., float], int | None]
] = {  # with the number of arguments; None: one or more
    "min": (lambda *values: min(values), None),
    "max": (lambda *values: max(values), None),
    "abs": (abs, 1),
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "exp": (math.exp, 1),
    "sqrt": (math.sqrt, 1),
    "log": (math.log, 1),
}


@dataclass(frozen=True)
class Formula:
    text: str
    names: frozenset[str]
    """The variables of the formula."""
    _tree: ast.expr

    def value(self, variables: Mapping[str, float]) -> float:
        """Raises ArithmeticError if the formula has no finite value."""
        try:
            found = _value(self._tree, variables)
        except ValueError as error:  # the logarithm of 0, the root of -1
            raise ArithmeticError(str(error)) from error
        if isinstance(found, complex) or not math.isfinite(found):
            raise ArithmeticError(f"its value is {found}")
        return float(found)


def formula(text: str, known: Collection[str], param: str = "calculate_output") -> Formula:
    """`known` contains the variables that the formula may use."""
    if len(text) > LONGEST:
        raise ConfigError(f"{param} has more than {LONGEST} characters.", param=param)
    try:
        # OpenAI writes powers as ^, which has another meaning and precedence in Python.
        tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{param} {text!r} is no formula: {error}.", param=param) from None
    names: set[str] = set()
    _check(tree, known, names, param, 0)
    return Formula(text, frozenset(names), tree)


def _check(node: ast.expr, known: Collection[str], names: set[str], param: str, depth: int) -> None:
    if depth > DEEPEST:
        raise ConfigError(f"{param} is more than {DEEPEST} operations deep.", param=param)
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            pass
        case ast.Name(id=name):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0)
                raise ConfigError(
                    f"{param} uses {name!r}, which no grader is called. Did you mean {near[0] if near else '?'}?",
                    param=param,
                )
            names.add(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            parts = [operand]
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in _FUNCTIONS:
            count = _FUNCTIONS[name][1]
            if len(parts) != count and (count is not None or not parts):
                raise ConfigError(f"{param}: {name} takes {count or 'at least one'} argument.", param=param)
        case _:
            raise ConfigError(
                f"{param} may use numbers, the graders' names, + - * / ^, and {', '.join(_FUNCTIONS)}; "
                f"{ast.unparse(node)!r} is something else.",
                param=param,
            )
    for part in parts:
        _check(part, known, names, param, depth + 1)


def _value(node: ast.expr, variables: Mapping[str, float]) -> Any:
    """Whole numbers are evaluated as floats: their powers overflow instead of using up the memory."""
    match node:
        case ast.Constant(value=value):
            return float(value)  # type: ignore[arg-type]
        case ast.Name(id=name):
            return float(variables[name])
        case ast.BinOp(left=left, op=op, right=right):
            value = _BINARY[type(op)](_value(left, variables), _value(right, variables))
        case ast.UnaryOp(op=sign, operand=operand):
            value = _UNARY[type(sign)](_value(operand, variables))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            value = _FUNCTIONS[name][0](*(_value(each, variables) for each in arguments))
        case _:
            raise AssertionError(f"{ast.dump(node)} was not checked")
    if isinstance(value, complex):
        raise ArithmeticError("the power of a negative number is not real")
    return float(value)
