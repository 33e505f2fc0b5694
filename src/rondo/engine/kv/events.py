"""Events of the prefix cache for routers: prefixes of prompts that are stored and dropped.

A router names a prefix by a hash of its bytes (`client/protocol/prefix.py`). When a prompt has been computed, each of
its prefixes is tied to the block in which it ends, at a proportional position. The eviction of that block drops the
prefix. Nothing is recorded until a router reads the events, and again once no router has read them for `IDLE_SECONDS`.

The engine's thread records; any thread reads.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice

from rondo.base.errors import Conflict
from rondo.client.protocol.prefix import PromptPieces

IDLE_SECONDS = 90.0
CAPACITY = 1 << 16
"""Events retained for readers; a reader that is further behind receives a snapshot."""

request_pieces: ContextVar[PromptPieces | None] = ContextVar("rondo_request_pieces", default=None)
"""Prefixes of the current HTTP request's prompt."""


@dataclass(frozen=True)
class CacheChanges:
    """Changes up to event number `last` of `epoch`; with `whole`, `stored` holds all prefixes in the cache."""

    epoch: str
    last: int
    whole: bool
    stored: list[int]
    dropped: list[int]


class CacheEvents:
    def __init__(
        self,
        published: Callable[[int], bool],
        block_size: int,
        capacity: int = CAPACITY,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`published`: whether the block with this key is in the prefix cache."""
        self._published, self._block_size, self._now = published, block_size, now
        self._lock = threading.Lock()
        self._tied: dict[int, list[int]] = {}
        """Prefixes that end in a block, by the key of the block."""
        self._stored: set[int] = set()
        self._log: deque[tuple[int, bool]] = deque(maxlen=capacity)
        self._last = 0
        self._epoch = ""
        self._scheme: tuple[int, int] | None = None
        self._until = 0.0
        self._wake: list[Callable[[], None]] = []

    @property
    def scheme(self) -> tuple[int, int] | None:
        """Bytes of a piece and the number of pieces of a prompt that the readers use; None if there is no reader."""
        return self._scheme if self._now() < self._until else None

    def read(self, scheme: tuple[int, int], epoch: str, after: int) -> CacheChanges:
        """Changes since event number `after` of `epoch`, or a snapshot if these events are not retained."""
        with self._lock:
            self._follow(scheme)
            if epoch != self._epoch or not self._last - len(self._log) <= after <= self._last:
                return CacheChanges(self._epoch, self._last, True, list(self._stored), [])
            final = dict(reversed(list(islice(reversed(self._log), self._last - after))))
            changes: tuple[list[int], list[int]] = ([], [])
            for piece, stored in final.items():
                changes[not stored].append(piece)
            return CacheChanges(self._epoch, self._last, False, *changes)

    def on_change(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls `wake` after each change, in the engine's thread. Returns a function that ends this."""
        with self._lock:
            self._wake.append(wake)

        def end() -> None:
            with self._lock:
                self._wake.remove(wake)

        return end

    # The methods below run in the engine's thread.

    def computed(self, prompt: PromptPieces, tokens: int, keys: Sequence[int]) -> None:
        """A prompt of so many tokens has been computed; `keys` are those of its full blocks."""
        with self._lock:
            if self._scheme is None or self._scheme[0] != prompt.piece:
                return
            for number, piece in enumerate(prompt.hashes, 1):
                ending = -(-number * prompt.piece * tokens // (prompt.size * self._block_size)) - 1
                if ending >= len(keys):
                    break
                if piece not in self._stored and self._published(keys[ending]):
                    self._tied.setdefault(keys[ending], []).append(piece)
                    self._stored.add(piece)
                    self._note(piece, True)
        self._call()

    def evicted(self, key: int) -> None:
        if key not in self._tied:
            return
        with self._lock:
            for piece in self._tied.pop(key, ()):
                self._stored.discard(piece)
                self._note(piece, False)
        self._call()

    def emptied(self) -> None:
        """The whole cache was dropped."""
        if self._scheme is None:
            return
        with self._lock:
            self._begin()
        self._call()

    def _follow(self, scheme: tuple[int, int]) -> None:
        now = self._now()
        if now >= self._until:
            self._begin()
            self._scheme = scheme
        elif self._scheme != scheme:
            raise Conflict(
                "Another gateway reads these events with other prefixes: set gateway.router.piece and "
                "gateway.router.longest to the same values in all gateways.",
                code="other_pieces",
            )
        self._until = now + IDLE_SECONDS

    def _begin(self) -> None:
        self._epoch, self._last = secrets.token_hex(6), 0
        self._tied, self._stored = {}, set()
        self._log.clear()

    def _note(self, piece: int, stored: bool) -> None:
        self._log.append((piece, stored))
        self._last += 1

    def _call(self) -> None:
        for wake in list(self._wake):
            wake()
