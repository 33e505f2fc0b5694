"""Queue of waiting requests, in order. While it is held, requests that have not started stay in it."""

from __future__ import annotations

import heapq

from rondo.engine.schedule.request import Request

Entry = tuple[int, int, int, Request]
"""Order of the request, its number of preemptions when it was queued, and the request."""


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
        """Whether a waiting request has started before, that is, was preempted."""
        return any(_waits(entry) and _begun(entry) for entry in self._heap)

    def push(self, request: Request) -> None:
        request.state = "waiting"
        self._count += 1
        self._put((*request.order, request.preemptions, request))

    def pop(self) -> Request | None:
        """The first request; it counts as waiting until it is `taken`, or put `back`."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if _waits(entry):
                return entry[-1]
        return None

    def taken(self) -> None:
        self._count -= 1

    def take(self, request: Request) -> bool:
        """Removes a waiting request out of turn, unless it is held back. The caller sets its state."""
        if self.holding and request.first_cached < 0:
            return False
        self._leave(request)
        return True

    def back(self, request: Request) -> None:
        self._put((*request.order, request.preemptions, request))

    def remove(self, request: Request) -> None:
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """Marks the entry as stale. Stale entries are dropped when they reach the top, or when there are too many."""
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
    """Whether the entry is current; False after its request was taken, even if the request was preempted and queued
    again."""
    *_, preemptions, request = entry
    return request.state == "waiting" and request.preemptions == preemptions


def _begun(entry: Entry) -> bool:
    return entry[-1].first_cached >= 0
