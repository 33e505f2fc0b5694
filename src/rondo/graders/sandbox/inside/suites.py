"""Test suites in natural form, executed outside the program's process.

Names that the tests use and do not define are looked up in the program, as is the module `solution`. `forms` lists the
supported kinds of tests.
"""

import ast
import linecache
import sys
import types
from dataclasses import dataclass
from typing import Any

from . import assertions, forms, pytest_stand_in
from .names import CANDIDATE, MODULE, Names, names_of, of_library
from .proxies import RemoteProgram

Result = forms.Result
BrokenTests = forms.BrokenTests


@dataclass(frozen=True)
class File:
    """One file of tests, checked and rewritten."""

    name: str
    source: str
    tree: ast.Module
    names: Names
    calls_check: bool
    """The file calls HumanEval's `check` itself."""
    reached: bool
    """There are assertions outside of functions."""


def prepare(sources: list[str]) -> list[File]:
    """Detects errors of the tests before the program runs, so that the program has no influence on them."""
    return [_prepare(source, f"tests {number}") for number, source in enumerate(sources, 1)]


def _prepare(source: str, name: str) -> File:
    try:
        tree = ast.parse(source)
        names = names_of(source, tree)
        calls_check = any(isinstance(node, ast.Name) and node.id == "check" for node in ast.walk(tree))
        asserting = assertions.defines_assertions(tree)
        reached = assertions.rewrite(tree)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BrokenTests(f"{name} are no Python: {error}") from None
    if names.evaluated:
        raise BrokenTests(
            f"{name} call {names.evaluated} with what the program gives, which could then decide its own verdict. "
            "Compare the text, or read it with ast.literal_eval."
        )
    if names.forgotten:
        raise BrokenTests(
            f"{name} use {names.forgotten} without importing it. Import it, or write "
            f"`from {MODULE} import {names.forgotten}` if it is the program's."
        )
    if not asserting:
        raise BrokenTests(f"{name} have no assertion that can run, so that they would pass any program.")
    return File(name, source, tree, names, calls_check, reached)


class Suite:
    def __init__(
        self, program: RemoteProgram, files: list[File], entry_point: str, outline: dict[str, list[str]]
    ) -> None:
        self._program, self._files = program, files
        self._entry_point, self._outline = entry_point, outline
        self._doubts: list[tuple[str, str]] = []
        """Files whose tests passed with the help of a name that may be a forgotten import, and the name."""

    def run(self) -> list[Result]:
        sys.modules[MODULE] = _Solution(self._program)
        pytest_stand_in.install()
        forms.install()
        if any("asyncio" in file.source for file in self._files):
            forms.install_asyncio()
        results = [result for file in self._files for result in self._run(file)]
        if self._doubts and all(passed for passed, _ in results):
            file, name = self._doubts[0]
            raise BrokenTests(f"{file} use {name} without importing it, and the program does not define it.")
        return results

    def _run(self, file: File) -> list[Result]:
        counter = assertions.Counter(self._program, file.reached)
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        names = vars(module)
        names.update(
            counter.names(), __builtins__=__builtins__, __file__="tests.py", exit=sys.exit, quit=sys.exit
        )
        asked = self._program.calls + self._program.lacked
        runner = forms.FormRunner(self._program, file.name)
        results = runner.attempt("", lambda: self._fill(file, names))
        results = results or runner.attempt("", lambda: self._execute(file, names))
        if not results:
            results = self._check(file, runner, names) + runner.run(names)
        self._program.begin()
        if not all(passed for passed, _ in results) or counter.held:
            return results or [(not self._program.fault, self._program.fault)]
        if counter.held_in_callbacks and not counter.reached:
            return results or [(True, "")]
        if self._program.calls + self._program.lacked == asked:
            raise BrokenTests(f"{file.name} executed no assertion, so that they would pass any program.")
        return [(False, f"{file.name}: no assertion was executed with what this program gives")]

    def _execute(self, file: File, names: dict[str, Any]) -> None:
        lines = file.source.splitlines(keepends=True)
        linecache.cache[file.name] = (len(file.source), None, lines, file.name)
        try:
            exec(compile(file.tree, file.name, "exec", dont_inherit=True), names)
        except SystemExit as end:  # the end of a script
            if end.code not in (None, 0) or self._program.is_raised(end):
                raise

    def _fill(self, file: File, names: dict[str, Any]) -> None:
        """Defines the program's names in the namespace of the tests."""
        only = file.names.only
        for name in sorted(file.names.free):
            if name == CANDIDATE:
                names[name] = self._candidate(file)
                continue
            sure = name in (only, self._entry_point) or name in file.names.explicit
            if not sure and name in self._outline["imported"]:
                self._doubts.append((file.name, name))
            try:
                names[name] = self._program.ask("get", name)
            except NameError:  # raised at its use
                if not sure and (found := of_library(name)) is not None:
                    names[name] = found
                    self._doubts.append((file.name, name))

    def _candidate(self, file: File) -> Any:
        """Argument of `check`: the entry point, else the one name of the program that the tests use, else the last
        public function that no other function of the program uses."""
        functions = self._outline["functions"]
        name = self._entry_point or file.names.only or (functions[-1] if functions else CANDIDATE)
        owner, _, method = name.rpartition(".")
        found = self._program.ask("get", owner or method)
        return getattr(found(), method) if owner else found

    def _check(self, file: File, runner: forms.FormRunner, names: dict[str, Any]) -> list[Result]:
        check = names.get("check")
        if file.calls_check or not isinstance(check, types.FunctionType) or check.__code__.co_argcount != 1:
            return []
        return runner.attempt("check", lambda: check(self._candidate(file)), passed=True)


class _Solution(types.ModuleType):
    """The program as a module."""

    def __init__(self, program: RemoteProgram) -> None:
        super().__init__(MODULE)
        # `import *` imports nothing: names in use are resolved anyway, and no name of the program hides one of the
        # tests.
        self.__all__: list[str] = []
        self._program = program

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._program.ask("get", name)
        except NameError as error:
            raise AttributeError(str(error)) from None
