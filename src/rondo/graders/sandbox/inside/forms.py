"""Kinds of tests: functions, classes as in pytest, cases of `unittest`, each also asynchronous."""

import inspect
import re
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from . import pytest_stand_in
from .assertions import TEST
from .errors import NotPassed, caught, is_failure
from .proxies import Awaitable, RemoteProgram, shown

Result = tuple[bool, str]

_FIXED = re.compile(r"(setup|teardown)(_module|_function|_class|_method)?$")


class BrokenTests(Exception):
    """The tests themselves cannot be run."""


def install() -> None:
    """Replaces the entry points of test frameworks by functions without effect: the tests run without them."""
    vars(unittest)["main"] = lambda *values, **named: None
    for name in ("assertRaises", "assertRaisesRegex"):
        setattr(unittest.TestCase, name, _catching(getattr(unittest.TestCase, name)))
    context = vars(unittest.case)["_AssertRaisesContext"]
    context.__exit__ = _unless_failed(context.__exit__)


def _unless_failed(leave: Callable[..., bool]) -> Callable[..., bool]:
    def replaced(self: Any, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return not is_failure(error, self.expected) and leave(self, kind, error, trace)

    return replaced


def _catching(method: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(self: unittest.TestCase, expected_exception: Any, *values: Any, **named: Any) -> Any:
        return method(self, caught(expected_exception), *values, **named)

    return replaced


def install_asyncio() -> None:
    """Extends `asyncio.run` and `create_task` to accept the awaitables of the program's asynchronous functions."""
    import asyncio

    for name in ("run", "create_task"):
        vars(asyncio)[name] = _awaiting(getattr(asyncio, name))


def _awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wait(value: Any) -> Any:
        return await value

    def replaced(value: Any, *values: Any, **named: Any) -> Any:
        return function(wait(value) if isinstance(value, Awaitable) else value, *values, **named)

    return replaced


class FormRunner:
    """Runs the tests of one file, each with separate results."""

    def __init__(self, program: RemoteProgram, file: str) -> None:
        self._program, self._file, self._requests = program, file, program.requests
        threading.excepthook = self._failed_in_thread

    def attempt(self, name: str, action: Callable[[], Any], passed: bool = False) -> list[Result]:
        """A failed result if the test fails, even if the tests caught the failure; otherwise no result, or one that
        `passed`."""
        label, error = name or self._file, None
        self._program.begin()
        try:
            action()
        except (BrokenTests, NotPassed):
            raise
        except BaseException as raised:
            error = raised
        if self._program.not_passed is not None:
            raise self._program.not_passed
        if self._program.fault:
            return [(False, f"{label}: {self._program.fault}")]
        if error is None:
            return [(True, "")] if passed else []
        if self._is_own_fault(error):
            raise BrokenTests(f"{label} failed by themselves: {said(error)}") from None
        return [(False, f"{label}: {said(error)}")]

    def run(self, names: dict[str, Any]) -> list[Result]:
        results: list[Result] = []
        fixtures = pytest_stand_in.fixtures(names)
        module = {
            name: value for name, value in names.items() if _FIXED.match(name) and inspect.isfunction(value)
        }
        around = sys.modules["__main__"]
        results += self._fixed(module.get("setup_module"), around)
        for name, value in list(names.items()):
            if inspect.isfunction(value) and TEST.match(name) and value.__module__ == "__main__":
                fixed = (module.get("setup_function"), module.get("teardown_function"))
                results += self._function(name, value, pytest_stand_in.marks_of(value), fixed, fixtures)
            elif inspect.isclass(value) and value.__module__ == "__main__":
                if issubclass(value, unittest.TestCase):
                    results += self._cases(value)
                elif name.startswith("Test"):
                    results += self._class(value, fixtures, [])
        return results + self._fixed(module.get("teardown_module"), around)

    def _fixed(self, function: Any, argument: object) -> list[Result]:
        """Runs set-up or tear-down, if defined."""
        if function is None:
            return []
        return self.attempt(function.__name__, lambda: _call_with(function, argument))

    def _failed_in_thread(self, about: Any) -> None:
        self._program.fault = self._program.fault or f"in a thread of the tests: {about.exc_type.__name__}"

    def _is_own_fault(self, error: BaseException) -> bool:
        if self._program.is_raised(error):
            return False
        if isinstance(error, ImportError) and error.name:
            return error.name.partition(".")[0] != "solution"
        return self._program.requests == self._requests and not isinstance(error, AssertionError)

    def _class(self, kind: type, fixtures: dict[str, Any], marks: list[Any]) -> list[Result]:
        """Runs the tests of a class and of its nested classes; marks of a class are marks of its tests."""
        members = {name: inspect.getattr_static(kind, name) for name in _members(kind)}
        tests = [name for name in members if TEST.match(name) and callable(getattr(kind, name))]
        inner = [each for name, each in members.items() if name.startswith("Test") and inspect.isclass(each)]
        if tests and kind.__init__ is not object.__init__:  # type: ignore[misc]
            raise BrokenTests(f"{kind.__name__} has an __init__, with which pytest does not run it either")
        if not tests and not inner:
            return []
        marks = marks + pytest_stand_in.marks_of(kind)
        results = self._fixed(getattr(kind, "setup_class", None), kind)
        fixtures = fixtures | pytest_stand_in.fixtures(members)
        for name in tests:
            results += self._method(kind, name, fixtures, marks)
        for each in inner:
            results += self._class(each, fixtures, marks)
        return results + self._fixed(getattr(kind, "teardown_class", None), kind)

    def _method(self, kind: type, name: str, fixtures: dict[str, Any], marks: list[Any]) -> list[Result]:
        instance = kind()
        bound = getattr(instance, name)
        around = tuple(
            next((getattr(instance, each) for each in pair if hasattr(instance, each)), None)
            for pair in (("setup_method", "setup"), ("teardown_method", "teardown"))
        )
        marks = marks + pytest_stand_in.marks_of(getattr(kind, name))
        return self._function(f"{kind.__name__}.{name}", bound, marks, around, fixtures, instance)

    def _function(
        self,
        name: str,
        function: Callable[..., Any],
        marks: list[Any],
        around: tuple[Any, ...],
        fixtures: dict[str, Any],
        instance: object = None,
    ) -> list[Result]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BrokenTests(f"{name} is a generator; tests that yield cannot be run")
        if pytest_stand_in.is_skipped(marks):
            return []
        results: list[Result] = []
        for given in pytest_stand_in.parameters(marks):
            missing = pytest_stand_in.missing(function, given, fixtures)
            if missing:
                raise BrokenTests(
                    f"{name} asks for arguments ({missing}) that no parametrize or fixture of the tests gives"
                )

            def test(given: dict[str, Any] = given) -> None:
                with pytest_stand_in.Fixtures(fixtures, instance) as made:
                    _call_with(around[0], function)
                    try:
                        if finish(function(**made.arguments(function, given))) is False:
                            raise AssertionError("it returned False")
                    finally:
                        _call_with(around[1], function)

            results += self._unless_skipped(name, test)
        return results

    def _unless_skipped(self, name: str, test: Callable[[], None]) -> list[Result]:
        skipped = False

        def action() -> None:
            nonlocal skipped
            try:
                test()
            except unittest.SkipTest:
                skipped = True

        results = self.attempt(name, action, passed=True)
        return [] if skipped and results == [(True, "")] else results

    def _cases(self, kind: type[unittest.TestCase]) -> list[Result]:
        loader = unittest.defaultTestLoader
        suite = loader.loadTestsFromTestCase(kind)
        wanted = [kind(name).id() for name in loader.getTestCaseNames(kind)]
        outcome = _Outcome(self._program, self)
        results = self.attempt(kind.__name__, lambda: suite.run(outcome))
        if outcome.broken is not None:
            raise outcome.broken
        found = outcome.results
        missing = [name for name in wanted if name not in found and name not in outcome.left_out]
        if not missing:
            failed = any(not passed for passed, _ in found.values())
            return [*found.values(), *([] if failed else results)]
        why = results[0][1] if results else f"{kind.__name__}: not all of its tests ran"
        return [*found.values(), *((False, why) for _ in missing)]


class _Outcome(unittest.TestResult):
    """One result per test; tests that skip themselves have no result."""

    def __init__(self, program: RemoteProgram, runner: FormRunner) -> None:
        super().__init__()
        self.results: dict[str, Result] = {}
        self.left_out: set[str] = set()
        self.broken: BaseException | None = None
        self._program, self._runner = program, runner

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._program.begin()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.broken = self.broken or self._program.not_passed
        if self._program.fault:
            self.results[test.id()] = (False, f"{test.id()}: {self._program.fault}")
        self._program.begin()

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        if isinstance(err[1], NotPassed):
            self.broken = err[1]
        elif self._runner._is_own_fault(err[1]):
            self.broken = BrokenTests(f"{test.id()} failed by itself: {said(err[1])}")
        self.results[test.id()] = (False, f"{test.id()}: {said(err[1])}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addError(test, err)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.results.setdefault(test.id(), (True, ""))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.left_out.add(test.id())

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addSuccess(test)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.results[test.id()] = (False, f"{test.id()}: succeeded where it was expected to fail")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)


def said(error: BaseException) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("tests "):
            line = trace.tb_lineno
        trace = trace.tb_next
    return shown(error) if line is None else f"line {line}: {shown(error)}"


def finish(value: Any) -> Any:
    """Awaits the return value of an asynchronous test."""
    if not inspect.isawaitable(value) or isinstance(value, Awaitable):
        return value
    import asyncio  # slow to import, and rarely needed

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


def _members(kind: type) -> Iterator[str]:
    names = dict.fromkeys(
        name for each in reversed(kind.__mro__) if each is not object for name in vars(each)
    )
    return iter(names)


def _call_with(function: Any, argument: object) -> None:
    """Calls a set-up or tear-down function; in pytest, it may take the test object or no argument."""
    if function is not None:
        wants = any(each.default is each.empty for each in inspect.signature(function).parameters.values())
        finish(function(argument) if wants else function())
