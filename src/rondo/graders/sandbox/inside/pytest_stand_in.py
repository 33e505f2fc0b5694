"""The part of pytest that tests of programs use, for sandboxes without the package pytest.

`raises`, `approx`, `fixture`, `skip`, `fail`, `param` and marks, of which `parametrize` and `skip` have an effect.
"""

import importlib.util
import inspect
import itertools
import math
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .errors import NotPassed, caught, is_failure


def install() -> None:
    if importlib.util.find_spec("pytest") is not None:
        return
    module = sys.modules["pytest"] = _Module("pytest")
    vars(module).update(
        raises=raises,
        approx=Approx,
        fixture=fixture,
        skip=_skip,
        fail=_fail,
        param=Param,
        mark=_Marks(),
        main=lambda *values, **named: 0,
    )


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotPassed(
            f"the tests use pytest.{name}, for which pytest has to be among the sandbox's packages."
        )


def raises(expected_exception: Any, *values: Any, match: str | None = None, **named: Any) -> Any:
    context = _Raises(caught(expected_exception), match)
    if not values:
        return context
    with context as about:
        values[0](*values[1:], **named)
    return about


class _Raises:
    def __init__(self, kind: Any, match: str | None) -> None:
        self._kind, self._match = kind, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> "_Raises":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> bool:
        if kind is None:
            raise AssertionError(f"did not raise {self._kind}")
        if not issubclass(kind, self._kind) or is_failure(error, self._kind):
            return False
        self.value, self.type = error, kind
        if self._match is not None:
            self.match(self._match)
        return True

    def match(self, pattern: str) -> bool:
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{pattern!r} does not match {str(self.value)[:500]!r}")
        return True


class Approx:
    """Equality of numbers, and of lists and dicts of numbers, within a tolerance."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False
    ) -> None:
        self._expected, self._nan_ok = expected, nan_ok
        self._rel = rel if rel is not None else 1e-6 if abs is None else 0.0
        self._abs = 1e-12 if abs is None else abs

    def __eq__(self, value: object) -> bool:
        return self._same(value, self._expected)

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"

    def _same(self, value: Any, expected: Any) -> bool:
        if isinstance(expected, Mapping):
            alike = isinstance(value, Mapping) and value.keys() == expected.keys()
            return alike and all(self._same(value[key], each) for key, each in expected.items())
        if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
            alike = isinstance(value, Sequence) and len(value) == len(expected)
            return alike and all(map(self._same, value, expected))
        if isinstance(expected, bool) or not isinstance(expected, int | float):
            return bool(value == expected)
        if not isinstance(value, int | float):
            return bool(value == expected)
        if self._nan_ok and math.isnan(value) and math.isnan(expected):
            return True
        return math.isclose(value, expected, rel_tol=self._rel, abs_tol=self._abs)


def _skip(reason: str = "", **named: Any) -> NoReturn:
    raise unittest.SkipTest(reason)


def _fail(reason: str = "", pytrace: bool = True) -> NoReturn:
    raise AssertionError(reason)


class Param:
    def __init__(self, *values: Any, marks: Any = (), id: Any = None) -> None:
        self.values = values


@dataclass(frozen=True)
class Mark:
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self.name != "parametrize" and len(values) == 1 and not named and _can_be_marked(values[0]):
            values[0].pytestmark = [*getattr(values[0], "pytestmark", []), self]
            return values[0]
        return _Decorator(Mark(self.name, values, named))


def _can_be_marked(value: object) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


@dataclass(frozen=True)
class _Decorator:
    mark: Mark

    def __call__(self, function: Any) -> Any:
        function.pytestmark = [*getattr(function, "pytestmark", []), self.mark]
        return function


class _Marks:
    def __getattr__(self, name: str) -> Mark:
        return Mark(name)


@dataclass(frozen=True)
class Fixture:
    function: Callable[..., Any]
    autouse: bool = False


def fixture(function: Any = None, **named: Any) -> Any:
    if function is None:
        return lambda function: fixture(function, **named)
    return Fixture(function, bool(named.get("autouse", False)))


def fixtures(names: Mapping[str, Any]) -> dict[str, Fixture]:
    return {name: value for name, value in names.items() if type(value) is Fixture}


def marks_of(marked: Any) -> list[Any]:
    """Marks of pytest have the same attributes. Subclasses inherit the marks of their base class."""
    found = getattr(marked, "pytestmark", [])
    return list(found) if isinstance(found, list | tuple) else [found]


def is_skipped(marks: list[Any]) -> bool:
    conditions = [mark.args[0] for mark in marks if mark.name == "skipif" and mark.args]
    return any(conditions) or any(mark.name == "skip" for mark in marks)


def parameters(marks: list[Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each run of a test."""
    for rows in itertools.product(*(_rows(mark) for mark in marks if mark.name == "parametrize")):
        yield {name: value for row in rows for name, value in row.items()}


def _rows(mark: Any) -> Iterable[dict[str, Any]]:
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    given = mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for values in given:
        row = values.values if hasattr(values, "marks") or type(values) is Param else None
        row = row if row is not None else (values,) if len(listed) == 1 else tuple(values)
        yield dict(zip(listed, row, strict=True))


def _wanted(function: Callable[..., Any]) -> list[str]:
    described = inspect.signature(function).parameters.values()
    return [
        each.name
        for each in described
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def missing(function: Callable[..., Any], given: Mapping[str, Any], known: Mapping[str, Fixture]) -> str:
    return ", ".join(name for name in _wanted(function) if name not in given and name not in known)


class Fixtures:
    """The fixtures of one run of a test, each made once and finished in reverse."""

    def __init__(self, known: Mapping[str, Fixture], instance: object) -> None:
        self._known, self._instance = known, instance
        self._made: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Fixtures":
        for name, each in self._known.items():
            if each.autouse:
                self._value(name)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def arguments(self, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: given[name] if name in given else self._value(name) for name in {*_wanted(function), *given}
        }

    def _value(self, name: str) -> Any:
        if name not in self._made:
            function = self._known[name].function
            wanted = [each for each in _wanted(function) if each != "self"]
            values = {each: self._value(each) for each in wanted}
            bound = function.__get__(self._instance) if "self" in _wanted(function) else function
            if inspect.isgeneratorfunction(function):
                self._made[name] = self._stack.enter_context(contextmanager(bound)(**values))
            else:
                self._made[name] = bound(**values)
        return self._made[name]
