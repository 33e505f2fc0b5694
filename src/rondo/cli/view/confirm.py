"""Confirmation of commands that remove files."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rondo.base.errors import InvalidRequest


def confirm(verb: str, lines: Sequence[str], yes: bool) -> bool:
    """Whether the user agrees. Without a terminal only `--yes` does."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{verb} {', '.join(line.split()[0] for line in lines)}? Confirm with --yes.")
    print("\n".join(f"  {line}" for line in lines), file=sys.stderr)
    print(f"{verb}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
