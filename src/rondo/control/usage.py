"""Usage by key, day (UTC) and model, and the daily quota of tokens."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa

from rondo.base.errors import Unavailable
from rondo.control import tables
from rondo.control.key import Key
from rondo.control.limits import RateLimited, limit_headers
from rondo.control.store.dialect import insert
from rondo.control.store.pending import Pending, succeeded
from rondo.control.store.store import Store

DAY_SECONDS = 86400
PAUSE_SECONDS = 0.5
"""Between two transactions. A process that is killed loses at most the additions of that time."""
SETTLED_SECONDS = 1.0
"""Wait that a refusal names while usage is being written."""

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
    """Usage is added in memory and written at once, or with the next transaction: there is at most one at a time, and a
    pause after each, because a transaction per request would cost as much CPU time as the request."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._unwritten: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._in_flight: list[dict[tuple[str, str, str], list[int]]] = []
        """Sums of uncommitted transactions: neither unwritten nor visible to a reader."""
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
            unwritten, in_flight = self._unwritten_tokens(key.id, day)
            spent += unwritten
            if spent + in_flight >= quota:
                # The snapshot may have a transaction whose callback has not run: then it is counted twice here.
                raise _over(key, quota, spent + in_flight, None if spent >= quota else SETTLED_SECONDS)
            return quota - spent - in_flight

        return self.store.read(work)

    def usage(self, key: str, since: str = "") -> Pending[list[Usage]]:
        """Written usage, by day and model, from the day `since` (YYYY-MM-DD) on."""
        wanted = (
            sa.select(
                _columns.day, _columns.model, _columns.requests, _columns.input_tokens, _columns.output_tokens
            )
            .where(_columns.key == key, _columns.day >= since)
            .order_by(_columns.day, _columns.model)
        )
        return self.store.read(lambda db: [Usage(*row) for row in db.execute(wanted)])

    def _unwritten_tokens(self, key: str, day: str) -> tuple[int, int]:
        """Tokens of no transaction, and of those that are not known to be committed."""
        with self._lock:
            return _tokens(self._unwritten, key, day), sum(
                _tokens(each, key, day) for each in self._in_flight
            )

    def flush(self) -> Pending[None]:
        """Writes the usage added so far."""
        taken: dict[tuple[str, str, str], list[int]] = {}

        def work(db: sa.Connection) -> None:
            """Takes the sums within the transaction, so that additions until then are part of it."""
            with self._lock:
                _merge(taken, self._unwritten)
                self._unwritten.clear()
                # PostgreSQL repeats this function after a deadlock.
                if not any(each is taken for each in self._in_flight):
                    self._in_flight.append(taken)
            if taken:
                add_usage(db, taken)

        def written(done: Future[None]) -> None:
            with self._lock:
                self._in_flight = [each for each in self._in_flight if each is not taken]
                if done.cancelled() or done.exception() is not None:
                    _merge(self._unwritten, taken)

        pending = self.store.write(work)
        pending.add_done_callback(written)
        return pending

    def _write(self) -> None:
        try:
            self.flush().add_done_callback(self._pause)
        except Unavailable:  # with the next addition
            with self._lock:
                self._writing = False

    def _pause(self, done: Future[None]) -> None:
        """After a failure the sums are written with the next addition."""
        if done.cancelled() or done.exception() is not None:
            with self._lock:
                self._writing = False
            return
        timer = threading.Timer(PAUSE_SECONDS, self._continue)
        timer.daemon = True
        timer.start()

    def _continue(self) -> None:
        with self._lock:
            self._writing = bool(self._unwritten)
            if not self._writing:
                return
        self._write()


def today() -> str:
    return _date(int(time.time() // DAY_SECONDS))


@lru_cache(2)
def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY_SECONDS))


def _merge(
    sums: dict[tuple[str, str, str], list[int]], added: Mapping[tuple[str, str, str], list[int]]
) -> None:
    for place, numbers in added.items():
        sums[place] = [old + number for old, number in zip(sums.get(place, [0, 0, 0]), numbers)]


def _tokens(sums: Mapping[tuple[str, str, str], list[int]], key: str, day: str) -> int:
    found = [numbers for (of, on, _), numbers in sums.items() if (of, on) == (key, day)]
    return sum(input_tokens + output_tokens for _, input_tokens, output_tokens in found)


def add_usage(db: sa.Connection, sums: Mapping[tuple[str, str, str], Sequence[int]]) -> None:
    """Adds requests, input tokens and output tokens by key, day and model."""
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


def _over(key: Key, quota: int, spent: int, wait: float | None) -> RateLimited:
    wait = DAY_SECONDS - time.time() % DAY_SECONDS if wait is None else wait
    return RateLimited(
        f"The key {key.name!r} has used {spent:,} of its {quota:,} tokens for today (UTC). Please try again in "
        f"{wait:.0f}s, or ask an admin for a larger quota.",
        wait,
        "tokens_per_day",
        limit_headers("tokens", quota, quota - spent, wait),
    )
