"""Chat templates with a bound on their work: steps are counted, and no single operation can explode.

A template is a program from a downloaded folder. Loops and macro calls count one step each, strings and output are
measured, and within `metered` the render raises `TooMuchWork` once it exceeds its limits. That works only for templates
whose other operations are cheap for inputs of bounded size, which `is_bounded` checks: for example, `'x'|center(10**9)`
is a single operation that code in the same process cannot interrupt. Other templates must be rendered in a process that
can be killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST_TEMPLATE = 64 << 10
SHORT_CONSTANT = 256
"""Maximum characters of a constant that may be added to a string at each step."""
LARGEST_FACTOR = 1 << 64
CLOCK_STEPS = 16
"""Number of steps between two checks of the clock."""


class TooMuchWork(Exception):
    """A render exceeded the limits of `metered`."""


@dataclass
class _Meter:
    steps: int
    killable: bool
    characters: int
    deadline: float


_meter: ContextVar[_Meter | None] = ContextVar("chat_template_meter", default=None)


@contextmanager
def metered(characters: int, steps: int | None = None, seconds: float = 0.0) -> Iterator[None]:
    """Limits renders inside: characters of any string, steps of loops and macros, and time. Without `steps` only
    characters are limited, for a process that is killed at its deadline."""
    left, deadline = steps or sys.maxsize, time.monotonic() + seconds
    token = _meter.set(_Meter(left, steps is None, characters, deadline))
    try:
        yield
    finally:
        _meter.reset(token)


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with compiled code that calls the functions below."""

    @staticmethod
    def step() -> None:
        meter = _meter.get()
        if meter is not None:
            meter.steps -= 1
            if meter.steps < 0:
                raise TooMuchWork
            if meter.steps % CLOCK_STEPS == 0 and not meter.killable and time.monotonic() > meter.deadline:
                raise TooMuchWork

    @staticmethod
    def add(left: Any, right: Any) -> Any:
        meter = _meter.get()
        # The sum of two strings or lists at most doubles their size, so it may be computed before it is
        # measured.
        return _checked(left + right, meter)

    @staticmethod
    def multiply(left: Any, right: Any) -> Any:
        _check_numbers(left, right)
        return left * right

    @staticmethod
    def remainder(left: Any, right: Any) -> Any:
        _check_numbers(left)
        return left % right

    @staticmethod
    def join(parts: Sequence[Any]) -> str:
        text: str = _checked("".join(map(str, parts)), _meter.get())
        return text

    @staticmethod
    def checked(value: Any) -> Any:
        return _checked(value, _meter.get())

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        meter = _meter.get()
        if meter is None:
            return "".join(parts)
        kept, size, most = [], 0, meter.characters
        for part in parts:
            size += len(part)
            if size > most:
                raise TooMuchWork
            kept.append(part)
        return "".join(kept)


def _checked(value: Any, meter: _Meter | None) -> Any:
    if meter is not None and isinstance(value, (str, list, tuple)) and len(value) > meter.characters:
        raise TooMuchWork
    return value


def _check_numbers(*values: Any) -> None:
    """Raises for large numbers: the length of a string or list times a number, or of a formatted string, depends on
    them."""
    meter = _meter.get()
    if meter is not None and not meter.killable and not all(map(_is_moderate, values)):
        raise TooMuchWork


def _is_moderate(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST_FACTOR)


class _Generator(CodeGenerator):
    """Counts each run of the body of a loop or macro, and measures results that may be larger than their operands."""

    _bodies: frozenset[int] = frozenset()

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._bodies |= {id(node.body)}
        super().visit_For(node, frame)

    def macro_body(self, node: Any, frame: Frame) -> Any:
        self._bodies |= {id(node.body)}
        return super().macro_body(node, frame)

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if id(nodes) in self._bodies:
            self.writeline("environment.step()")
        super().blockvisit(nodes, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        if _is_short(node.left) or _is_short(node.right):
            super().visit_Add(node, frame)
        else:
            self._write_call("add", node, frame)

    def visit_Mul(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._write_call("multiply", node, frame)

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        self._write_call("remainder", node, frame)

    def _write_call(self, function: str, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"environment.{function}(")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        self.write("environment.checked(")
        super().visit_Filter(node, frame)
        self.write(")")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """Constant expressions are not evaluated at compile time, where no limit applies."""
        if not isinstance(node, (nodes.Const, nodes.TemplateData)):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


MeteredEnvironment.code_generator_class = _Generator


def _is_short(node: nodes.Expr) -> bool:
    if not isinstance(node, nodes.Const):
        return False
    return not isinstance(node.value, str) or len(node.value) <= SHORT_CONSTANT


def is_bounded(source: str, environment: jinja2.Environment) -> bool:
    """Whether `metered` can limit the template: all of its operations are known, and none has a result much larger than
    its operands."""
    if len(source) > LONGEST_TEMPLATE:
        return False
    try:
        tree = environment.parse(source)
        macros = {macro.name for macro in tree.find_all(nodes.Macro)}
        # The content of a literal that is written out once is irrelevant.
        written = {id(one.node) for one in tree.find_all(nodes.Filter) if one.name == "tojson"}
        return all(id(node) in written or _is_known(node, macros) for node in _all(tree))
    except (jinja2.TemplateError, RecursionError):
        return False


def _all(node: nodes.Node) -> Iterator[nodes.Node]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.iter_child_nodes()


STATEMENTS = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock),
    *(nodes.Macro, nodes.CallBlock, nodes.ExprStmt, nodes.Break, nodes.Continue, nodes.Scope),
)
EXPRESSIONS = (
    *(
        nodes.Name,
        nodes.NSRef,
        nodes.Const,
        nodes.CondExpr,
        nodes.Test,
        nodes.Getattr,
        nodes.Getitem,
        nodes.Slice,
    ),
    *(
        nodes.Compare,
        nodes.Operand,
        nodes.And,
        nodes.Or,
        nodes.Not,
        nodes.Neg,
        nodes.Pos,
        nodes.Add,
        nodes.Sub,
    ),
    *(nodes.Mul, nodes.Mod, nodes.Concat, nodes.Keyword, nodes.ExtensionAttribute),
)
FUNCTIONS = frozenset(["namespace", "range", "raise_exception", "caller", "loop"])
# fmt: off
METHODS = frozenset([
    "split", "rsplit", "splitlines", "startswith", "endswith", "removeprefix",
    "removesuffix", "lower", "upper", "title", "capitalize", "items", "keys", "values", "get", "find", "rfind", "index",
    "count", "isdigit", "isalpha", "isspace",
])
FILTERS = frozenset([
    "trim", "tojson", "length", "count", "upper", "lower", "capitalize", "title", "string", "list", "first", "last",
    "items", "dictsort", "default", "d", "int", "float", "abs", "round", "safe", "reverse", "sort", "unique", "min",
    "max", "selectattr", "rejectattr", "select", "reject", "join", "map", "replace", "indent", "escape", "e",
])
MAPPED = frozenset(["string", "trim", "upper", "lower", "length", "first", "last", "int", "float"])
"""Filters that `map` may apply."""
# fmt: on


def _is_known(node: nodes.Node, macros: set[str]) -> bool:
    match node:
        case nodes.Call():
            return _is_known_call(node, macros)
        case nodes.Filter():
            return node.node is not None and _is_known_filter(node)
        case nodes.Tuple() if node.ctx == "store":
            return True
        case nodes.List() | nodes.Tuple() | nodes.Dict():
            # A list that contains a list twice, repeatedly, is short in memory and exponential when printed.
            parts = [part for item in node.items for part in _parts(item)]
            return all(isinstance(part, nodes.Const) for part in parts)
    return isinstance(node, (*STATEMENTS, *EXPRESSIONS, nodes.Pair))


def _parts(item: nodes.Node) -> list[nodes.Node]:
    return [item.key, item.value] if isinstance(item, nodes.Pair) else [item]


def _is_known_call(node: nodes.Call, macros: set[str]) -> bool:
    called = node.node
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    match called:
        case nodes.Name(name="strftime_now"):
            formats = [arg.value for arg in node.args if isinstance(arg, nodes.Const)]
            return len(formats) == len(node.args) == 1 and len(str(formats[0])) <= SHORT_CONSTANT
        case nodes.Name():
            return called.name in FUNCTIONS or called.name in macros
        case nodes.Getattr(attr="replace"):
            return _shrinks(node.args)
        case nodes.Getattr(attr="strip" | "lstrip" | "rstrip"):
            return all(map(_is_little, node.args))
        case nodes.Getattr():
            return called.attr in METHODS
    return isinstance(called, nodes.ExtensionAttribute)


def _is_known_filter(node: nodes.Filter) -> bool:
    if node.name not in FILTERS or node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    given = [*node.args, *(keyword.value for keyword in node.kwargs)]
    match node.name:
        case "map":
            names = [arg.value for arg in node.args if isinstance(arg, nodes.Const)]
            return len(names) == len(node.args) and MAPPED.issuperset(names)
        case "replace":
            return not node.kwargs and _shrinks(node.args)
        case "join" | "indent" | "tojson" | "trim" | "int" | "round":
            return all(map(_is_little, given))
    return True


def _is_little(node: nodes.Expr) -> bool:
    """Whether a constant adds little at each element, line or level."""
    if isinstance(node, nodes.Tuple):
        return all(map(_is_little, node.items))
    if not isinstance(node, nodes.Const):
        return False
    value = node.value
    return len(value) <= 16 if isinstance(value, str) else not isinstance(value, int) or value <= 16


def _shrinks(args: Sequence[nodes.Expr]) -> bool:
    """Whether `replace` with these arguments never lengthens a text."""
    texts = [arg.value for arg in args if isinstance(arg, nodes.Const) and isinstance(arg.value, str)]
    return len(texts) == len(args) == 2 and len(texts[0]) >= len(texts[1]) and bool(texts[0])
