"""How much memory each cage holds, all its processes together."""

import os


def held(proc: int) -> dict[int, int]:
    """Bytes by a cage's first process, as the worker numbers it. Pages that processes share count once for each.

    `proc` is the host's /proc, where every process has another number; what ended meanwhile is left out.
    """
    worker = os.readlink("self", dir_fd=proc)
    return {
        number: sum(_resident(proc, each) for each in _family(proc, child))
        for child in _children(proc, worker)
        if (number := _number_for_worker(proc, child)) is not None
    }


def _family(proc: int, process: str) -> list[str]:
    family = [process]
    for each in family:
        family += _children(proc, each)
    return family


def _children(proc: int, process: str) -> list[str]:
    """Of all its threads."""
    try:
        handle = os.open(f"{process}/task", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return []
    try:
        threads = os.listdir(handle)
    except OSError:
        threads = []
    finally:
        os.close(handle)
    return [child for thread in threads for child in _text(proc, f"{process}/task/{thread}/children").split()]


def _resident(proc: int, process: str) -> int:
    fields = _text(proc, f"{process}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _number_for_worker(proc: int, process: str) -> int | None:
    """A process has a number in each space that it is in, its own the last."""
    for line in _text(proc, f"{process}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-2])
    return None


def _text(proc: int, path: str) -> str:
    try:
        handle = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return ""
    try:
        return os.read(handle, 1 << 16).decode()
    except OSError:
        return ""
    finally:
        os.close(handle)
