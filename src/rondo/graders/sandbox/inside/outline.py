"""Definitions in a program, parsed from its source before it runs: the program cannot change them."""

import ast
from collections.abc import Iterator


def of(source: str) -> dict[str, list[str]]:
    """`imported`: names that the program imports and does not define; `functions`: its public functions in order, the
    ones that no other function uses last."""
    tree = ast.parse(source)
    imported: set[str] = set()
    defined: set[str] = set()
    for node in _outer(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    return {"imported": sorted(imported - defined), "functions": _functions(tree)}


def _outer(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those inside functions and classes."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _outer(node)


def _functions(tree: ast.Module) -> list[str]:
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [each for each in found if not each.name.startswith("_")]
    used = {
        node.id
        for each in found
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and node.id != each.name
    }
    return sorted(dict.fromkeys(each.name for each in public), key=lambda name: name not in used)
