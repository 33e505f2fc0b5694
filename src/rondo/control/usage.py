"""Usage by key, day (UTC) and model, and the daily quota of tokens."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass

import sqlalchemy as sa

from rondo.base.errors import Unavailable
from rondo.control import tables
from rondo.control.key import Key
from rondo.control.limits import RateLimited
from rondo.control.store.dialect import insert
from rondo.control.store.pending import Pending, succeeded
from rondo.control.store.store import Store

DAY_SECONDS = 86400

_columns = tables.usage.c
_SPENT = sa.select(sa.func.coalesce(sa.func.sum(_columns.input_tokens + _columns.output_tokens), 0)).where(
    _columns.key == sa.bindparam("of"), _columns.day == sa.bindparam("on")
)


@dataclass(frozen=True)
class Usage:
    day: str
    model: str
    requests: int
    input_tokens: int
    output_tokens: int


class UsageLog:
    """Usage is added in memory and written by at most one transaction at a time: while the disk is busy, further
    requests join the next one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._unwritten: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._writing = False

    def add(self, key: str, model: str, requests: int, input_tokens: int, output_tokens: int) -> None:
        """Adds to the day's usage; no caller waits for it."""
        with self._lock:
            sums = self._unwritten[key, today(), model]
            for place, number in enumerate((requests, input_tokens, output_tokens)):
                sums[place] += number
            if self._writing:
                return
            self._writing = True
        self._write()

    def check_quota(self, key: Key) -> Pending[int | None]:
        """Tokens left of the key's daily quota; None without one. `RateLimited` (429) when it is spent. A request that
        begins below the quota may exceed it."""
        quota, day = key.rights.tokens_per_day, today()
        if quota is None:
            return succeeded(None)

        def work(db: sa.Connection) -> int | None:
            spent = int(db.execute(_SPENT, {"of": key.id, "on": day}).scalar_one())
            spent += self._unwritten_tokens(key.id, day)
            if spent >= quota:
                raise _over(key, quota, spent)
            return quota - spent

        return self.store.read(work)

    def usage(self, key: str, since: str = "") -> Pending[list[Usage]]:
        """By day and model, from the day `since` (YYYY-MM-DD) on."""
        wanted = (
            sa.select(
                _columns.day, _columns.model, _columns.requests, _columns.input_tokens, _columns.output_tokens
            )
            .where(_columns.key == key, _columns.day >= since)
            .order_by(_columns.day, _columns.model)
        )
        return self.store.read(lambda db: [Usage(*row) for row in db.execute(wanted)])

    def _unwritten_tokens(self, key: str, day: str) -> int:
        with self._lock:
            found = [sums for (of, on, _), sums in self._unwritten.items() if (of, on) == (key, day)]
        return sum(input_tokens + output_tokens for _, input_tokens, output_tokens in found)

    def _write(self) -> None:
        """Takes the sums within the transaction, so that additions until then are part of it."""
        taken: dict[tuple[str, str, str], list[int]] = {}

        def work(db: sa.Connection) -> None:
            with self._lock:
                for place, sums in self._unwritten.items():
                    old = taken.get(place, [0, 0, 0])
                    taken[place] = [a + b for a, b in zip(old, sums)]
                self._unwritten.clear()
            _add(db, taken)

        def written(done: Future[None]) -> None:
            with self._lock:
                if done.cancelled() or done.exception() is not None:
                    for place, sums in taken.items():  # with the next addition
                        self._unwritten[place] = [a + b for a, b in zip(self._unwritten[place], sums)]
                    self._writing = False
                    return
                self._writing = bool(self._unwritten)
                if not self._writing:
                    return
            self._write()

        try:
            self.store.write(work).add_done_callback(written)
        except Unavailable:
            with self._lock:
                self._writing = False
            raise


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _add(db: sa.Connection, sums: dict[tuple[str, str, str], list[int]]) -> None:
    statement = insert(db.dialect.name, tables.usage)
    names = ("requests", "input_tokens", "output_tokens")
    added = {name: _columns[name] + statement.excluded[name] for name in names}
    db.execute(
        statement.on_conflict_do_update(
            index_elements=[_columns.key, _columns.day, _columns.model], set_=added
        ),
        [
            {"key": key, "day": day, "model": model, **dict(zip(names, numbers))}
            for (key, day, model), numbers in sorted(sums.items())
        ],
    )


def _over(key: Key, quota: int, spent: int) -> RateLimited:
    wait = DAY_SECONDS - time.time() % DAY_SECONDS
    return RateLimited(
        f"The key {key.name!r} has used {spent:,} of its {quota:,} tokens for today (UTC). Please try again in "
        f"{wait:.0f}s, or ask an admin for a larger quota.",
        wait,
        "tokens_per_day",
    )
