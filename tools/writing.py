"""Checks the writing rules of CONTRIBUTING.md: `python tools/writing.py [--list AREA] [--commits RANGE]`.

A clause violates the rules if its subject is a pronoun such as "whoever" or "what", or if it describes a program with a
verb of speech or perception. Each area of the text has a limit; an area above its limit fails the check.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
REWRITTEN = 0.5
LIMITS = {
    "docstrings": 1.0,
    "errors": 2.0,
    "help": 2.0,
}
"""Percent of clauses, for areas that are not rewritten yet; lower a limit after each rewrite. All others: REWRITTEN."""

SUBJECTS = (
    r"\b(?:whoever|whomever|whom|nobody|somebody|everybody|anybody)\b",
    r"\ball that\b(?! is\b)",
    r"\b(?:those|that) (?:that|which|who|of|are|were|with)\b",
    r"(?<!users )(?<!people )(?<!person )\bwho\b",
    r"\bwhat\b(?! to\b)(?![^.]*\?)|\bwhatever\b",
)
VERBS = r"\b(?:says|said|tells|told|asks|asked|knows|knew|sees|gives|gave|comes|came|goes|went|keeps|kept|finds)\b"
BANNED = re.compile("|".join((*SUBJECTS, VERBS)), re.IGNORECASE)
CLAUSE = re.compile(
    r"[.;:!?,()|]+(?:\s|$)|\n\s*(?=\n|[-#*>])|\s(?:and|but|or|because|while|when|where|if|which|so that)\s"
)
CODE = re.compile(
    r"^(```|~~~).*?^\1|``.+?``|`[^`]*`|\]\([^)]*\)|<[^>\n]*>|https?://\S+", re.MULTILINE | re.DOTALL
)
RAISES = re.compile(r"(?:Error|Conflict|Unavailable|Refused|refusal|error)$")


def pages() -> Iterator[tuple[str, Path]]:
    """Area and path of each Markdown file."""
    for path in sorted(
        [
            *ROOT.glob("*.md"),
            *ROOT.glob("bench/*.md"),
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob(".github/**/*.md"),
        ]
    ):
        name = str(path.relative_to(ROOT))
        yield (
            next((f"docs/{part}" for part in ("adr", "notes") if name.startswith(f"docs/{part}/")), name),
            path,
        )


def strings(path: Path) -> Iterator[tuple[str, int, str]]:
    """(area, line, text) of docstrings, error messages and help texts in a Python file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield "docstrings", node.lineno, node.value.value
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if RAISES.search(name):
                yield from (("errors", node.lineno, text) for each in node.args for text in literals(each))
            for keyword in node.keywords:
                if keyword.arg in ("help", "description"):
                    yield from (("help", node.lineno, text) for text in literals(keyword.value))


def literals(node: ast.expr) -> Iterator[str]:
    """The text of a string or f-string; a replacement field counts as one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)  # type: ignore[misc]


def clauses(text: str, line: int = 1) -> Iterator[tuple[int, str]]:
    """(line, clause) of every clause of three words or more. Code, links and quotations do not count."""
    text = CODE.sub(lambda found: "\n" * found.group().count("\n"), text)
    text = re.sub(r'"[^"\n]*"', "x", text)
    start = 0
    for end in [*CLAUSE.finditer(text), None]:
        clause = text[start : end.start() + end.group().startswith("?") if end else None]
        if len(re.findall(r"[A-Za-z]{2,}", clause)) > 2:
            lead = len(clause) - len(clause.lstrip())
            yield line + text.count("\n", 0, start + lead), " ".join(clause.split())
        start = end.end() if end else start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="AREA", help="print every violation of one area")
    parser.add_argument("--commits", metavar="RANGE", help="check the subjects of these commits too")
    options = parser.parse_args()
    found: dict[str, list[str]] = {}
    total: dict[str, int] = {}
    texts = [(area, path, 1, path.read_text()) for area, path in pages()]
    if options.commits:
        log = subprocess.run(
            ["git", "log", "--format=%s.", options.commits],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        texts.append(("commits", ROOT / options.commits, 1, log.stdout))
    for path in sorted(ROOT.glob("src/**/*.py")):
        texts += [(area, path, line, text) for area, line, text in strings(path)]
    for area, path, first, text in texts:
        for line, clause in clauses(text, first):
            total[area] = total.get(area, 0) + 1
            if hit := BANNED.search(clause):
                found.setdefault(area, []).append(f"{path.relative_to(ROOT)}:{line}: {hit.group()}: {clause}")
    failed = False
    for area, count in total.items():
        share, limit = 100 * len(found.get(area, [])) / count, LIMITS.get(area, REWRITTEN)
        over = share > limit
        failed |= over
        if over or area == options.list:
            print(*found.get(area, []), sep="\n")
        print(f"{area}: {share:.1f}% of {count} clauses, limit {limit}%{'  TOO MANY' if over else ''}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
