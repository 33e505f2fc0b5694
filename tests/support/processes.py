"""Looking at processes that tests start, and at what those start."""

from collections.abc import Collection
from pathlib import Path

from support.waiting import wait_until


def alive(pid: int) -> bool:
    """One that has ended, and that nobody has waited for yet, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: Collection[int], seconds: float = 60) -> None:
    wait_until(lambda: not any(map(alive, pids)), seconds)


def children_of(pid: int) -> list[int]:
    """Of all of its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
