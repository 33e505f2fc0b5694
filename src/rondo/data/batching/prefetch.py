"""Prefetch: the next batches are made in a thread while a step computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType

from rondo.base.errors import Unavailable
from rondo.data.batching.loader import Batch
from rondo.data.batching.sampler import Position

LOOK_SECONDS = 0.2
"""Interval at which a waiting thread checks whether the other is alive."""
STOP_SECONDS = 60.0


class Prefetch:
    """Wraps a batch function and prepares up to `depth` batches ahead. An error in its thread is raised in the call
    that requests the batch. A request for an unexpected position restarts it."""

    def __init__(self, batches: Callable[[Position], Batch], depth: int) -> None:
        self._batches, self._depth = batches, depth
        self._work: _Work | None = None

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, position: Position) -> Batch:
        if self._depth == 0:
            return self._batches(position)
        if self._work is None or self._work.due != position:
            self.close()
            self._work = _Work(self._batches, position, self._depth)
        return self._work.next()

    def close(self) -> None:
        if self._work is not None:
            self._work.stop()
            self._work = None


class _Work:
    def __init__(self, batches: Callable[[Position], Batch], first: Position, depth: int) -> None:
        self.due = first
        self._batches = batches
        self._made: queue.Queue[Batch | BaseException] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(first,), name="rondo-prefetch", daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        while True:
            try:
                made = self._made.get(timeout=LOOK_SECONDS)
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._made.empty():
                    raise Unavailable("the thread that reads the data has ended") from None
        if isinstance(made, BaseException):
            raise made
        self.due = made.position
        return made

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS)

    def _run(self, position: Position) -> None:
        while not self._stopped.is_set():
            try:
                batch = self._batches(position)
            except BaseException as error:  # raised again in `next`
                return self._put(error)
            self._put(batch)
            position = batch.position

    def _put(self, made: Batch | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                return self._made.put(made, timeout=LOOK_SECONDS)
            except queue.Full:
                continue
