"""Checks the structure of the package: `python tools/structure.py`.

Limits: 12 entries in a package, 15 files in a folder, one class per public name, a number of short files with a single
importer, a number of import cycles that a function hides, and a number of product lines. Folders in `ALLOWED` exceed a
limit for the stated reason.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "rondo"
ENTRIES, FILES, LINES = 12, 15, 130_000
SHORT = 60
"""Lines below which a file with a single importer should be part of that importer."""
SINGLE_IMPORTER = 56
"""Short files with a single importer; lower the number when some are merged."""
CYCLES = 2
"""Imports inside functions that would be cycles at the top of their module; lower the number when some are resolved."""
ALLOWED = {"graders/sandbox/inside": "copied into each sandbox as a flat package"}


def modules() -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")))


def folders() -> Iterator[str]:
    """Folders with too many files, and packages with too many entries."""
    for folder in sorted({path.parent for path in modules()}):
        name = str(folder.relative_to(PACKAGE))
        files = [path for path in folder.iterdir() if path.suffix in (".py", ".c", ".h")]
        files = [path for path in files if path.name != "__init__.py"]
        inner = [path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))]
        if len(files) > FILES and name not in ALLOWED:
            yield f"{name}: {len(files)} files in a folder, at most {FILES} are allowed"
        if folder.parent == PACKAGE and len(files) + len(inner) > ENTRIES:
            yield f"{name}: {len(files) + len(inner)} entries in a package, at most {ENTRIES} are allowed"


def docstrings() -> Iterator[str]:
    """Packages without an explanation."""
    for path in PACKAGE.glob("*/__init__.py"):
        if len((ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()) < 5:
            yield f"{path.relative_to(PACKAGE)}: a package explains inputs, outputs and the file to read first"


def classes() -> Iterator[str]:
    """Public class names that stand for more than one class."""
    found = defaultdict[str, list[str]](list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    for name, places in found.items():
        if len(places) > 1:
            yield f"class {name} is defined in {', '.join(places)}: choose another name for all but one"


def importers() -> dict[str, set[str]]:
    """Importing modules by imported module."""
    found = defaultdict[str, set[str]](set)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    found[name].add(str(path))
            elif isinstance(node, ast.Import):
                for each in node.names:
                    found[each.name].add(str(path))
    return found


def short_files() -> list[str]:
    imported = importers()
    found = []
    for path in modules():
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        lines = path.read_text().count("\n")
        if path.name != "__init__.py" and lines < SHORT and len(imported[name]) == 1:
            found.append(f"{path.relative_to(PACKAGE)}: {lines} lines, imported once")
    return found


class Imports(ast.NodeVisitor):
    """Modules of the package that a module imports: at its top (also for types only), and inside functions."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.depth = known, 0
        self.top, self.inside = set[str](), set[str]()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        self._add(each.name for each in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        inner = {f"{node.module}.{each.name}" for each in node.names}
        self._add(inner & self.known or [str(node.module)])

    def _add(self, names: Iterable[str]) -> None:
        (self.inside if self.depth else self.top).update(self.known.intersection(names))


def hidden_cycles() -> list[str]:
    paths = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules()
    }
    imports = {name: Imports(set(paths)) for name in paths}
    for name, path in paths.items():
        imports[name].visit(ast.parse(path.read_text()))
    return [
        f"{name} imports {inner} inside a function, because {inner} leads back to it"
        for name in paths
        for inner in sorted(imports[name].inside)
        if name in _reachable(inner, imports)
    ]


def _reachable(start: str, imports: dict[str, Imports]) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name].top
    return found


def main() -> int:
    lines = sum(path.read_text().count("\n") for path in modules())
    problems = [*folders(), *docstrings(), *classes()]
    short = short_files()
    if lines > LINES:
        problems.append(f"{lines} lines of Python, at most {LINES} are allowed")
    if len(short) > SINGLE_IMPORTER:
        problems += [
            f"{len(short)} short files have a single importer, at most {SINGLE_IMPORTER} may:",
            *short,
        ]
    cycles = hidden_cycles()
    if len(cycles) > CYCLES:
        problems += [
            f"{len(cycles)} import cycles are hidden by functions, at most {CYCLES} may be:",
            *cycles,
        ]
    print(
        "\n".join(problems)
        if problems
        else f"structure: {lines} lines, {len(short)} short files with one importer, {len(cycles)} hidden cycles"
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
