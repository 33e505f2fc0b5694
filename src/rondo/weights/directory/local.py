"""Weight directory of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rondo.weights.directory.types import (
    Published,
    check_age,
    check_checksum,
    expired,
    has_writer,
    no_version,
    not_the_writer,
)


@dataclass
class _Entry:
    published: Published
    expires: float


@dataclass
class _Writer:
    owner: str
    token: int
    expires: float


@dataclass
class _State:
    changed: threading.Condition = field(default_factory=threading.Condition)
    entries: dict[tuple[str, int, str], _Entry] = field(default_factory=dict)
    writers: dict[str, _Writer] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    """Time at which the lease of each owner expires."""
    tokens: int = 0


class Directory:
    """`shared` is a directory whose entries this one accesses, with leases of its own length."""

    def __init__(
        self,
        lease_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        shared: Directory | None = None,
    ) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._state: _State = _State() if shared is None else shared._state

    def claim(self, model: str, owner: str, token: int | None = None) -> int:
        with self._state.changed:
            writer = self._writer(model)
            if writer is not None and (writer.owner != owner or token not in (None, writer.token)):
                raise has_writer(model, writer.owner)
            self._extend(owner)
            self._state.tokens += 1
            self._state.writers[model] = _Writer(owner, self._state.tokens, self._clock() + self._lease_s)
            return self._state.tokens

    def check(self, model: str, token: int) -> None:
        with self._state.changed:
            self._check(model, token)

    def release(self, model: str, token: int) -> None:
        with self._state.changed:
            writer = self._state.writers.get(model)
            if writer is not None and writer.token == token:
                del self._state.writers[model]

    def publish(self, entry: Published, token: int | None = None) -> None:
        model, version = entry.model, entry.version
        with self._state.changed:
            alive = self._alive(model)
            for other in alive:
                if other.version == version:
                    check_checksum(other.checksum, entry.checksum, model, version, other.owner)
            newest = max((each.version for each in alive), default=-1)
            if token is not None or (version > newest and model in self._state.writers):
                self._check(model, token)
            copied = token is None and any(each.version == version for each in alive)
            check_age(model, version, newest, copied)
            self._extend(entry.owner)
            self._state.entries[model, version, entry.owner] = _Entry(entry, self._clock() + self._lease_s)
            self._state.changed.notify_all()

    def renew(self, owner: str) -> None:
        now = self._clock()
        with self._state.changed:
            until = self._state.leases.get(owner)
            if until is None:
                return
            if until <= now:
                del self._state.leases[owner]
                raise expired(owner)
            self._extend(owner)
            for entry in self._state.entries.values():
                if entry.published.owner == owner:
                    entry.expires = now + self._lease_s
            for writer in self._state.writers.values():
                if writer.owner == owner:
                    writer.expires = now + self._lease_s

    def withdraw(self, model: str, version: int, owner: str) -> None:
        with self._state.changed:
            self._state.entries.pop((model, version, owner), None)

    def lookup(self, model: str, version: int | None = None) -> list[Published]:
        with self._state.changed:
            alive = self._alive(model)
        if version is None and alive:
            version = max(entry.version for entry in alive)
        found = [entry for entry in alive if entry.version == version]
        if not found:
            raise no_version(model, version)
        return found

    def watch(self, model: str, after: int, seconds: float) -> list[Published]:
        with self._state.changed:
            self._state.changed.wait_for(lambda: self._newer(model, after), seconds)
            found = self._newer(model, after)
        newest = max((each.version for each in found), default=0)
        return [each for each in found if each.version == newest]

    def close(self) -> None:
        """There is nothing to close."""

    def _extend(self, owner: str) -> None:
        self._state.leases[owner] = self._clock() + self._lease_s

    def _check(self, model: str, token: int | None) -> None:
        known = self._state.writers.get(model)
        if known is None or token != known.token or known.expires <= self._clock():
            raise not_the_writer(model, "gone" if known is None else known.owner)

    def _newer(self, model: str, after: int) -> list[Published]:
        return [each for each in self._alive(model) if each.version > after]

    def _writer(self, model: str) -> _Writer | None:
        writer = self._state.writers.get(model)
        return writer if writer is not None and writer.expires > self._clock() else None

    def _alive(self, model: str) -> list[Published]:
        now = self._clock()
        self._state.entries = {
            key: entry for key, entry in self._state.entries.items() if entry.expires > now
        }
        return [entry.published for key, entry in self._state.entries.items() if key[0] == model]
