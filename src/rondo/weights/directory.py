"""Who holds which version of which model's weights, and where, in this process.

An owner that stops renewing its lease is gone, and its shards with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rondo.base.errors import Conflict, NotFound


@dataclass(frozen=True)
class WeightShard:
    """One tensor under its Hugging Face name. `where` is for the transport to understand."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    where: str


@dataclass(frozen=True)
class Published:
    model: str
    version: int
    owner: str
    shards: tuple[WeightShard, ...]
    checksum: str


@dataclass
class _Entry:
    published: Published
    expires: float


class Directory:
    def __init__(self, lease_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, int, str], _Entry] = {}

    def publish(
        self, model: str, version: int, owner: str, shards: Sequence[WeightShard], checksum: str
    ) -> Published:
        """Publishes a complete version. All holders of a version have the same checksum."""
        entry = Published(model, version, owner, tuple(shards), checksum)
        with self._lock:
            for other in self._alive(model):
                if other.version == version and other.checksum != checksum:
                    raise Conflict(
                        f"version {version} of {model} has checksum {other.checksum} at {other.owner}, not {checksum}"
                    )
            self._entries[model, version, owner] = _Entry(entry, self._clock() + self._lease_s)
        return entry

    def renew(self, owner: str) -> None:
        with self._lock:
            for entry in self._entries.values():
                if entry.published.owner == owner and entry.expires > self._clock():
                    entry.expires = self._clock() + self._lease_s

    def withdraw(self, model: str, version: int, owner: str) -> None:
        with self._lock:
            self._entries.pop((model, version, owner), None)

    def lookup(self, model: str, version: int | None = None) -> list[Published]:
        """All live holders of a version, the newest by default."""
        with self._lock:
            alive = self._alive(model)
        if version is None and alive:
            version = max(entry.version for entry in alive)
        found = [entry for entry in alive if entry.version == version]
        if not found:
            asked = "no version" if version is None else f"no version {version}"
            raise NotFound(f"{asked} of {model} is in the weight directory")
        return found

    def _alive(self, model: str) -> list[Published]:
        now = self._clock()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.expires > now}
        return [entry.published for key, entry in self._entries.items() if key[0] == model]
