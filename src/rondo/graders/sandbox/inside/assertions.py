"""Counts the assertions that tests execute, and rewrites the places where their outcome could be lost.

An assertion is an `assert`, a call whose name begins with `assert` or is `raises` or `warns`, an `if` that raises, and
an `except` clause of a `try` that would otherwise fail. Constants (`assert True`) do not count.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .errors import caught
from .proxies import Object, RemoteProgram, next_item

_CHECK = re.compile(r"assert|(raises|warns)$")
_CATCHES = ("raises", "assertRaises", "assertRaisesRegex", "suppress")
_ENDS = ("fail", "exit", "_exit", "quit")
_PRINTS = ("print", "print_exc", "debug", "info", "warning", "error", "exception", "write", "log", "append")
TEST = re.compile(r"test($|_|[A-Z0-9])")
_CALLED = re.compile(r"test($|_|[A-Z0-9])|set_?[uU]p|tear_?[dD]own|async(SetUp|TearDown)|check$|__\w+__$")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.ClassDef


class Counter:
    """Outcome of the assertions in one file of tests. Assertions in functions that the program called are counted
    separately: the program decides whether and with which arguments they run."""

    def __init__(self, program: RemoteProgram, reached: bool) -> None:
        self._program = program
        self.held = 0
        self.held_in_callbacks = 0
        self.reached = reached
        """A scope of the tests with assertions has begun, other than because the program called it."""

    def names(self) -> dict[str, Any]:
        """Helper functions that rewritten tests call; no program and no test can define names like these."""
        return {
            "@held": self._hold,
            "@checks": self._checks,
            "@reached": self._reach,
            "@handled": self._handle,
            "@caught": caught,
            "next": next_item,
        }

    def _hold(self) -> None:
        if self._program.callbacks:
            self.held_in_callbacks += 1
        else:
            self.held += 1

    def _reach(self) -> None:
        self.reached = self.reached or not self._program.callbacks

    def _checks(self, function: Any) -> Callable[..., Any]:
        """The same function, counted. A function of the program is not counted as an assertion of the tests."""
        if isinstance(function, Object):
            return function

        def counted(*values: Any, **named: Any) -> Any:
            result = function(*values, **named)
            self._hold()
            return result

        return counted

    def _handle(self, quiet: bool, broad: bool, raised: str) -> None:
        """Runs in an `except` clause. The clause expects an exception of the program, or it hides a failure of the
        test. `quiet`: the clause only prints or counts; `broad`: it also catches failed assertions in the `try`;
        `raised`: exception types that the `try` raises by itself."""
        error = sys.exc_info()[1]
        own = error is not None and not self._program.is_raised(error)
        failed = broad or (
            own and (type(error).__name__ in raised.split() or isinstance(error, AssertionError))
        )
        if not failed:
            self._hold()
        elif quiet:
            self._program.fault = (
                self._program.fault or f"the tests hide that they failed: {type(error).__name__}"
            )


def defines_assertions(tree: ast.Module) -> bool:
    """Whether any assertion can be executed: it is outside functions, in a test, or in a function that is used."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return any(all(_may_run(scope, used) for scope in scopes) for scopes in _asserting(tree, (), _own(tree)))


def rewrite(tree: ast.Module) -> bool:
    """Rewrites the tree in place. Returns whether there are assertions outside of functions."""
    rewriter = _Rewriter(_own(tree))
    rewriter.visit(tree)
    ast.fix_missing_locations(tree)
    return rewriter.asserts[0]


def _own(tree: ast.Module) -> set[str]:
    """Functions of the tests; their own assertions count."""
    return {node.name for node in ast.walk(tree) if isinstance(node, Function)}


def _may_run(scope: Scope, used: set[str]) -> bool:
    if scope.name in used or scope.decorator_list:
        return True
    if isinstance(scope, ast.ClassDef):
        return scope.name.startswith("Test") or bool(scope.bases)
    return bool(_CALLED.match(scope.name))


def _asserting(node: ast.AST, scopes: tuple[Scope, ...], own: set[str]) -> Iterator[tuple[Scope, ...]]:
    """The enclosing scopes of each assertion."""
    for child in ast.iter_child_nodes(node):
        inner = (*scopes, child) if isinstance(child, Scope) else scopes
        functions = [each.name for each in scopes if not isinstance(each, ast.ClassDef)]
        if _is_assertion(child, own, _is_test(functions)):
            yield inner
        yield from _asserting(child, inner, own)


def _is_test(functions: list[str]) -> bool:
    """Whether any `raise` inside these nested functions fails a test. Outside of functions it does."""
    return not functions or bool(_CALLED.match(functions[-1]))


def _is_assertion(node: ast.AST, own: set[str], in_test: bool) -> bool:
    if isinstance(node, ast.Assert):
        return not _is_constant(node.test)
    if isinstance(node, ast.Call):
        return _is_check(node, own)
    if isinstance(node, ast.If):
        return _fails(node.body + node.orelse, in_test)
    return isinstance(node, ast.Try | ast.TryStar) and _may_fail(node, in_test)


def _is_constant(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) or (isinstance(test, ast.Tuple) and bool(test.elts))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_check(node: ast.Call, own: set[str]) -> bool:
    name = _called(node)
    return name not in own and bool(_CHECK.match(name))


def _fails(body: list[ast.stmt], in_test: bool) -> bool:
    """Whether these statements themselves fail the test: they raise, or call `fail` or `exit`."""
    return any(_fails_always(each, in_test) for each in body)


def _fails_always(node: ast.AST, in_test: bool) -> bool:
    if isinstance(node, ast.Raise):
        return in_test or _raises_assertion(node)
    return isinstance(node, ast.stmt) and (_calls(node, _ENDS) or _is_false(node))


def _calls(node: ast.stmt, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) in names


def _may_fail(node: ast.Try | ast.TryStar, in_test: bool) -> bool:
    body = node.body + node.orelse
    return _may_assert(body) or any(_fails_always(each, in_test) for part in body for each in ast.walk(part))


def _raised(body: list[ast.stmt]) -> str:
    """Types that these statements raise by themselves."""
    inside = [each for part in body for each in ast.walk(part) if isinstance(each, ast.Raise) and each.exc]
    raised = [each.exc.func if isinstance(each.exc, ast.Call) else each.exc for each in inside]
    return " ".join(["SystemExit", *(each.id for each in raised if isinstance(each, ast.Name))])


def _is_false(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assert) and _is_constant(node.test)


def _may_assert(body: list[ast.stmt]) -> bool:
    inside = [each for part in body for each in ast.walk(part)]
    return any(
        (isinstance(each, ast.Assert) and not _is_constant(each.test))
        or (isinstance(each, ast.Call) and bool(_CHECK.match(_called(each))))
        for each in inside
    )


def _is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether the clause catches `AssertionError`, alone or among other types."""
    names = (
        {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
    )
    return handler.type is None or bool(names & {"AssertionError", "Exception", "BaseException"})


def _is_quiet(handler: ast.ExceptHandler) -> bool:
    return all(
        isinstance(each, ast.Pass | ast.AugAssign)
        or _calls(each, _PRINTS)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in handler.body
    )


class _Rewriter(ast.NodeTransformer):
    def __init__(self, own: set[str]) -> None:
        self._own = own
        self.asserts = [False]
        """For each enclosing scope, whether it contains an assertion outside its nested scopes."""
        self._functions: list[str] = []
        """Names of the enclosing functions."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: Function) -> ast.AST:
        self.asserts.append(False)
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        if self.asserts.pop():
            node.body.insert(0, _call("@reached", node))
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        if _is_constant(node.test):
            return node
        return [node, self._mark(node)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _called(node) in _CATCHES and node.args:
            node.args = [_value("@caught", node, each) for each in node.args[:1]] + node.args[1:]
        if _is_check(node, self._own):
            self.asserts[-1] = True
            node.func = _value("@checks", node, node.func)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        counts = _fails(node.body + node.orelse, _is_test(self._functions))
        self.generic_visit(node)
        if counts:
            node.body.insert(0, self._mark(node))
            node.orelse.insert(0, self._mark(node))
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return self._try(node)

    def visit_TryStar(self, node: ast.TryStar) -> ast.AST:
        return self._try(node)

    def _try(self, node: ast.Try | ast.TryStar) -> ast.AST:
        counts = _may_fail(node, _is_test(self._functions))
        asserts, raised = _may_assert(node.body), _raised(node.body)
        about = [(_is_quiet(each), asserts and _is_broad(each), raised) for each in node.handlers]
        self.generic_visit(node)
        for handler, facts in zip(node.handlers, about):
            if handler.type is not None:
                handler.type = _value("@caught", handler, handler.type)
            if counts:
                self.asserts[-1] = True
                handler.body.insert(0, _call("@handled", handler, *[ast.Constant(fact) for fact in facts]))
        return node

    def _mark(self, node: ast.AST) -> ast.stmt:
        self.asserts[-1] = True
        return _call("@held", node)


def _raises_assertion(node: ast.Raise) -> bool:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(raised, ast.Name) and raised.id == "AssertionError"


def _value(name: str, at: ast.AST, *values: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(values), []), at)


def _call(name: str, at: ast.AST, *values: ast.expr) -> ast.stmt:
    return ast.copy_location(ast.Expr(_value(name, at, *values)), at)
