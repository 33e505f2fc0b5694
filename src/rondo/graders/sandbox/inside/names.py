"""Separates the tests' free names into names of the program and imports that the tests forgot.

Only the tests determine whether a name is a forgotten import: a program must not be able to turn a failed test into an
error of the tests.
"""

import ast
import builtins
import importlib
import symtable
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

MODULE = "solution"
CANDIDATE = "candidate"

_ALIASES = {"np", "numpy", "pd", "pandas", "plt", "pytest", "scipy", "sympy", "torch", "mock", "nx"}
_LIBRARIES = (
    "collections",
    "contextlib",
    "copy",
    "datetime",
    "decimal",
    "fractions",
    "math",
    "typing",
    "unittest.mock",
)
_EVALUATES = {"compile", "eval", "exec", "marshal.loads", "pickle.loads"}
_JUDGES = {"TestCase", "allclose", "approx", "array_equal", "array_almost_equal", "raises", "warns"}


@dataclass(frozen=True)
class Names:
    free: set[str]
    """Names that the tests read and that neither the tests nor Python define: the program's."""
    explicit: set[str]
    """Names that the tests import from `solution`."""
    forgotten: str
    """A name that the tests use as part of a library without importing it; empty if there is none."""
    evaluated: str
    """A function with which the tests would execute text of the program as their own code; empty if there is none."""

    @property
    def only(self) -> str:
        """The one name of the program that the tests use; empty if there are several or none."""
        names = (self.free | self.explicit) - {CANDIDATE}
        return next(iter(names)) if len(names) == 1 else ""


def names_of(source: str, tree: ast.Module) -> Names:
    free = _free(source)
    imported = {
        each.asname or each.name: each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == MODULE
        for each in node.names
        if each.name != "*"
    }
    modules = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for each in node.names
        if each.name == MODULE
    }
    own = {*imported, *modules, CANDIDATE}
    return Names(free, set(imported.values()), _forgotten(tree, free, own), _evaluated(tree, free | own))


def of_library(name: str) -> Any:
    """The object of this name in one of the libraries that tests use; None if no library has it."""
    for module in _LIBRARIES:
        if name in _public(module):
            return getattr(importlib.import_module(module), name)
    return None


def _free(source: str) -> set[str]:
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
    known = {*dir(builtins), "exit", "quit"}
    return {name for name in read - bound - known if not name.startswith("__")}


def _forgotten(tree: ast.Module, free: set[str], own: set[str]) -> str:
    modules = sorted(_used_as_modules(tree, free))
    if modules:
        return modules[0]
    doubtful = {name for name in free if _is_of_library(name)}
    if doubtful == free and not any(isinstance(node, ast.Name) and node.id in own for node in ast.walk(tree)):
        return ""  # `gcd(12, 18) == 6`: the program's function has the same name as one of a library
    own = own | (free - doubtful)
    uses = list(_uses(tree))
    flows = _flows(uses, free | own)
    for use in uses:
        roots = use.roots(flows)
        if not use.defines and roots & own and roots & doubtful:
            return min(roots & doubtful)
    return ""


def _evaluated(tree: ast.Module, own: set[str]) -> str:
    flows = _flows(list(_uses(tree)), own)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _EVALUATES:
            names = {each.id for value in node.args for each in ast.walk(value) if isinstance(each, ast.Name)}
            if any(flows.get(name) for name in names):
                return ast.unparse(node.func)
    return ""


def _used_as_modules(tree: ast.Module, free: set[str]) -> set[str]:
    """Names of modules of which the tests only use attributes, as in `math.isclose(...)`."""
    attributes = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    bases = {id(node) for node in attributes}
    alone = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in bases}
    return {name for name in free - alone if name in sys.stdlib_module_names or name in _ALIASES}


def _is_of_library(name: str) -> bool:
    if name in _JUDGES or name in _ALIASES or name in _LIBRARIES or name.startswith("assert"):
        return True
    return any(name in _public(module) for module in _LIBRARIES)


@cache
def _public(module: str) -> frozenset[str]:
    found = importlib.import_module(module)
    listed = getattr(found, "__all__", dir(found))
    return frozenset(name for name in listed if not name.startswith("_")) - {"call", "error"}


@dataclass(frozen=True)
class _Use:
    """One statement without its nested statements, or the whole of a function or class."""

    loads: set[str]
    stores: set[str]
    defines: bool

    def roots(self, flows: dict[str, set[str]]) -> set[str]:
        return {root for name in self.loads for root in flows.get(name, ())}


def _uses(tree: ast.Module) -> Iterator[_Use]:
    for node in ast.walk(tree):
        defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not isinstance(node, ast.stmt):
            continue
        parts = [each for each in ast.iter_child_nodes(node) if defines or not _is_block(each)]
        used = [each for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)]
        loads = {each.id for each in used if isinstance(each.ctx, ast.Load)}
        stores = {node.name} if defines else {each.id for each in used} - loads  # type: ignore[attr-defined]
        yield _Use(loads, stores, defines)


def _flows(uses: list[_Use], sources: set[str]) -> dict[str, set[str]]:
    """For each variable of the tests, the names whose values flow into it by assignments, loops and functions."""
    flows = {name: {name} for name in sources}
    changed = True
    while changed:
        changed = False
        for use in uses:
            roots = use.roots(flows)
            for name in use.stores:
                if not roots <= flows.setdefault(name, set()):
                    flows[name] |= roots
                    changed = True
    return flows


def _is_block(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case)
