"""The requests that wait, in order; while the queue is held, those that have not begun stay in it."""

from __future__ import annotations

import heapq

from rondo.engine.schedule.request import Request

Entry = tuple[int, int, int, Request]
"""Its order, how often it was preempted when it was put here, and the request."""


class WaitingQueue:
    def __init__(self) -> None:
        self.holding = False
        self._count = 0
        self._heap: list[Entry] = []
        self._held: list[Entry] = []

    def __len__(self) -> int:
        return self._count

    @property
    def in_progress(self) -> bool:
        """Whether one waits that has begun already: it was preempted."""
        return any(_waits(entry) and _begun(entry) for entry in self._heap)

    def push(self, request: Request) -> None:
        request.state = "waiting"
        self._count += 1
        self._put((*request.order, request.preemptions, request))

    def pop(self) -> Request | None:
        """The first; it counts as waiting until it is `taken`, or put `back`."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if _waits(entry):
                return entry[-1]
        return None

    def taken(self) -> None:
        self._count -= 1

    def take(self, request: Request) -> bool:
        """Takes one that waits out of turn, unless it is held back. The caller changes its state."""
        if self.holding and request.first_cached < 0:
            return False
        self._leave(request)
        return True

    def back(self, request: Request) -> None:
        self._put((*request.order, request.preemptions, request))

    def remove(self, request: Request) -> None:
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """It stays in the heap until it surfaces, but such ones do not pile up in it."""
        request.state = "finished"
        self._count -= 1
        if len(self._heap) + len(self._held) > 2 * self._count + 64:
            self._heap = list(filter(_waits, self._heap))
            self._held = list(filter(_waits, self._held))
            heapq.heapify(self._heap)

    def hold(self) -> None:
        self.holding = True
        self._held += [entry for entry in self._heap if not _begun(entry)]
        self._heap = list(filter(_begun, self._heap))
        heapq.heapify(self._heap)

    def release(self) -> None:
        self.holding = False
        self._heap += self._held
        self._held = []
        heapq.heapify(self._heap)

    def _put(self, entry: Entry) -> None:
        if self.holding and not _begun(entry):
            self._held.append(entry)
        else:
            heapq.heappush(self._heap, entry)


def _waits(entry: Entry) -> bool:
    """False for one that was taken, even if it was preempted since and is in the heap again."""
    *_, preemptions, request = entry
    return request.state == "waiting" and request.preemptions == preemptions


def _begun(entry: Entry) -> bool:
    return entry[-1].first_cached >= 0
