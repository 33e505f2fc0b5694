"""Order in which waiting jobs start: owners share fairly, and jobs with several GPUs are not overtaken for ever."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from rondo.control.jobs.book import JobRow
from rondo.control.jobs.launchers.launcher import Launcher
from rondo.jobs.spec import JobSpec


class LauncherRoom:
    """Room beside the active jobs of one launcher."""

    def __init__(self, launcher: Launcher, active: Iterable[JobRow]) -> None:
        self.launcher = launcher
        self._specs = [spec for row in active if (spec := spec_of(row)) is not None]
        self._refused = set[tuple[int, bool]]()
        """GPUs of refused jobs, and whether they were younger than the reserved one: the room only shrinks."""
        self._reserved: JobRow | None = None

    @property
    def full(self) -> bool:
        return self.launcher.full(self._specs)

    def reserve(self, row: JobRow) -> None:
        """The oldest waiting job with several GPUs: a younger job with GPUs starts only if this one still fits."""
        self._reserved = row

    def fits(self, row: JobRow) -> bool:
        if (spec := spec_of(row)) is None:
            return True  # its start fails, with the reason
        reserved = self._reserved
        younger = reserved is not None and row.number > reserved.number
        key = (gpus_of(spec), younger)
        if key in self._refused:
            return False
        fits = self.launcher.room(self._specs, spec)
        if fits and younger and reserved is not None and key[0]:
            fits = self.launcher.room([*self._specs, spec], reserved.spec)
        if not fits:
            self._refused.add(key)
        return fits

    def add(self, row: JobRow) -> None:
        if (spec := spec_of(row)) is not None:
            self._specs.append(spec)
        if self._reserved is not None and row.number == self._reserved.number:
            self._reserved = None


def rooms_of(launchers: Mapping[str, Launcher], active: Iterable[JobRow]) -> dict[str, LauncherRoom]:
    beside = defaultdict[str, list[JobRow]](list)
    for row in active:
        beside[row.launcher].append(row)
    rooms = {name: LauncherRoom(launcher, beside[name]) for name, launcher in launchers.items()}
    return {name: room for name, room in rooms.items() if not room.full}


def reserve(rooms: Mapping[str, LauncherRoom], waiting: Iterable[JobRow]) -> None:
    """Reserves room for the oldest waiting job with several GPUs of each launcher."""
    missing = set(rooms)
    for row in waiting:
        if not missing:
            return
        if row.launcher in missing and (spec := spec_of(row)) is not None and gpus_of(spec) > 1:
            rooms[row.launcher].reserve(row)
            missing.discard(row.launcher)


def in_turn(waiting: Iterable[JobRow], shares: Counter[str]) -> Iterator[JobRow]:
    """The owner with the fewest active jobs is next, then the oldest job. The caller counts each start in `shares`."""
    queues = defaultdict[str, deque[JobRow]](deque)
    for row in waiting:
        queues[row.owner].append(row)
    heads = [(shares[owner], queue[0].number, owner) for owner, queue in queues.items()]
    heapify(heads)
    while heads:
        owner = heappop(heads)[2]
        queue = queues[owner]
        yield queue.popleft()
        if queue:
            heappush(heads, (shares[owner], queue[0].number, owner))


def spec_of(row: JobRow) -> JobSpec | None:
    """None if this version cannot read it."""
    with contextlib.suppress(Exception):
        return row.spec
    return None


def gpus_of(spec: JobSpec) -> int:
    return spec.resources.get("gpus", 0)
