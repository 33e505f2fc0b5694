"""Tests as people write them: assertions, functions named `test_...`, cases of `unittest`.

They are run where the program is not. A name that they use and do not define is asked of the program, and so is the
module `solution`.
"""

import ast
import builtins
import importlib
import inspect
import symtable
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

from .proxies import NotPassed, Program
from .script import execute

MODULE = "solution"

Result = tuple[bool, str]


class Broken(Exception):
    """The tests themselves cannot be run."""


def run(program: Program, sources: list[str]) -> list[Result]:
    sys.modules[MODULE] = _Solution(program)
    vars(unittest)["main"] = lambda *values, **named: None  # the tests are run without their asking for it
    return [result for number, source in enumerate(sources, 1) for result in _run(program, source, number)]


class _Solution(types.ModuleType):
    """The program as a module."""

    def __init__(self, program: Program) -> None:
        super().__init__(MODULE)
        # `import *` brings nothing: names in use are found anyway, and none of the program's hides one of the tests'.
        self.__all__: list[str] = []
        self._program = program

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._program.ask("get", name)
        except NameError as error:
            raise AttributeError(str(error)) from None


def _run(program: Program, source: str, number: int) -> Iterator[Result]:
    name = f"tests {number}"
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        wanted = wanted_names(source)
        modules = only_modules(source, wanted)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Broken(f"{name} are no Python: {error}") from None
    for each in sorted(wanted):
        if each in modules:
            names[each] = importlib.import_module(each)
            continue
        try:
            names[each] = program.ask("get", each)
        except NameError:  # raised where it is used
            continue
        except Exception as error:
            yield False, f"{name}: {each}: {said(error)}"
            return
    try:
        execute(source, name, names)
    except NotPassed:
        raise
    except BaseException as error:
        if _own_fault(error, bool(wanted) or MODULE in source):
            raise Broken(f"{name} failed by themselves: {said(error)}") from None
        yield False, f"{name}: {said(error)}"
        return
    suite = unittest.TestSuite(_cases(names))
    functions = [each for each in names.values() if _is_test(each)]
    if not suite.countTestCases() and not functions:
        yield True, ""
    for function in functions:
        yield _call(function)
    outcome = _Outcome()
    suite.run(outcome)
    yield from outcome.results.values()


def wanted_names(source: str) -> set[str]:
    """Those that the tests read and neither define nor find in Python: the program's."""
    top = symtable.symtable(source, "tests", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    read = {
        each.get_name()
        for table in tables
        for each in table.get_symbols()
        if each.is_referenced() and each.is_global()
    }
    bound = {
        each.get_name()
        for table in tables
        for each in table.get_symbols()
        if (each.is_assigned() or each.is_imported() or each.is_namespace())
        and (table is top or each.is_declared_global())
    }
    return {name for name in read - bound if not hasattr(builtins, name) and not name.startswith("__")}


def only_modules(source: str, names: set[str]) -> set[str]:
    """Modules of Python's that the tests use without importing them, because their program would have."""
    tree = ast.parse(source)
    attributes = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    based = {id(node) for node in attributes}
    alone = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in based}
    return {name for name in names - alone if name in sys.stdlib_module_names}


def said(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("tests "):
            line = trace.tb_lineno
        trace = trace.tb_next
    return text if line is None else f"line {line}: {text}"


def _own_fault(error: BaseException, uses_program: bool) -> bool:
    if isinstance(error, ImportError) and error.name:
        return error.name.partition(".")[0] != MODULE
    return not uses_program and not isinstance(error, AssertionError)


def _is_test(value: object) -> bool:
    return inspect.isfunction(value) and value.__name__.startswith("test_")


def _call(function: types.FunctionType) -> Result:
    if any(each.default is each.empty for each in inspect.signature(function).parameters.values()):
        raise Broken(f"{function.__name__} asks for arguments; only test functions without any can be run")
    try:
        function()
    except NotPassed:
        raise
    except BaseException as error:
        return False, f"{function.__name__}: {said(error)}"
    return True, ""


def _cases(names: dict[str, Any]) -> Iterator[unittest.TestSuite]:
    loader = unittest.TestLoader()
    for value in names.values():
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == "tests":
            yield loader.loadTestsFromTestCase(value)


class _Outcome(unittest.TestResult):
    """One result a test; the tests' own skips are none."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Result] = {}

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        if isinstance(err[1], NotPassed):
            raise err[1]
        self.results[test.id()] = (False, f"{test.id()}: {said(err[1])}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addError(test, err)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.results.setdefault(test.id(), (True, ""))

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addSuccess(test)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.results[test.id()] = (False, f"{test.id()}: succeeded where it was expected to fail")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)
