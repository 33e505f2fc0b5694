"""The durable queue on this machine's disk, without HTTP: requests submitted, leased and finished, pruned, a second.

Each answer waits for the disk. Bodies of 200 bytes and of 64 kB, in an empty store and in one with a million waiting
requests, on SQLite and, where it is installed, on PostgreSQL. Limits: the rows alone in a table without an index, in
transactions of as many; and the number of syncs a second of the disk.
"""

import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from common import Report, arguments, say
from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.postgres import installed, postgres

SHORT = '{"prompt": "' + "word " * 33 + '", "max_tokens": 128}'
LONG = '{"prompt": "' + "word " * 13_100 + '", "max_tokens": 128}'
RESULT = '{"text": "' + "word " * 100 + '"}'
TAKEN, CALLERS, WORKERS = 100, 64, 4
ROUNDS = 3


def rate(number: int, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return number / (time.perf_counter() - begin)


def put(queue: Queue, model: str, body: str, number: int, together: int) -> None:
    for _ in range(0, number, together):
        queue.put([New(model, body)] * together, "owner").result()


async def put_one_by_one(queue: Queue, model: str, body: str, number: int) -> None:
    """Each caller waits for its own answer before it sends the next."""

    async def one() -> None:
        for _ in range(number // CALLERS):
            await queue.put([New(model, body)], "owner")

    await asyncio.gather(*(one() for _ in range(CALLERS)))


async def work_off(leases: Leases, model: str, number: int, workers: int) -> None:
    async def one(name: str) -> None:
        for _ in range(0, number // workers, TAKEN):
            taken = await leases.take(name, [model], TAKEN)
            await leases.finish([Finished(each.id, each.lease, RESULT) for each in taken])

    await asyncio.gather(*(one(f"w{i}") for i in range(workers)))


def prune(store: Store) -> float:
    """Deletes all requests that `rates` left, waiting ones after they are cancelled."""
    queue = Queue(store, QueueConfig(keep=0.0))
    queue.clear().result()
    return rate(sum(queue.counts().result().values()), lambda: queue.prune().result())


def rates(store: Store, number: int, model: str, body: str, size: str, together: int) -> dict[str, float]:
    queue, leases = Queue(store), Leases(store)
    actions: dict[str, tuple[int, Callable[[], object]]] = {
        f"{size}, put {together:,} together": (number, lambda: put(queue, model, body, number, together)),
        f"{size}, put by {CALLERS} callers": (
            number // 4,
            lambda: asyncio.run(put_one_by_one(queue, model, body, number // 4)),
        ),
        f"{size}, leased and finished in {TAKEN}s": (
            number // 2,
            lambda: asyncio.run(work_off(leases, model, number // 2, 1)),
        ),
        f"{size}, leased and finished by {WORKERS} workers": (
            number // 2,
            lambda: asyncio.run(work_off(leases, model, number // 2, WORKERS)),
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, (each, action) in actions.items():
            found[name].append(rate(each, action))
    return {name: median(values) for name, values in found.items()}


def both_sizes(store: Store, number: int) -> dict[str, float]:
    short = rates(store, number, "short", SHORT, "200 B", 1000)
    return short | rates(store, number // 5, "long", LONG, "64 kB", 100)


def bare(path: Path, number: int) -> float:
    """Rows a second without index, queue or counts."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE t (body TEXT)")

    def write() -> None:
        for _ in range(0, number, 1000):
            db.execute("BEGIN")
            db.executemany("INSERT INTO t VALUES (?)", [(SHORT,)] * 1000)
            db.execute("COMMIT")

    found = rate(number, write)
    db.close()
    return found


def syncs(path: Path, number: int = 300) -> float:
    with path.open("wb") as file:

        def write() -> None:
            for _ in range(number):
                file.write(b"\0" * 4096)
                file.flush()
                os.fdatasync(file.fileno())

        return rate(number, write)


def main() -> None:
    global ROUNDS
    options = arguments(__doc__ or "")
    number, rows = (2000, 20_000) if options.quick else (20_000, 1_000_000)
    if options.quick:
        ROUNDS = 1
    report = Report("the durable queue, requests a second")
    with ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"))))
        places: dict[str, Path | str] = {"SQLite": place / "rondo.db"}
        if installed():
            places["PostgreSQL"] = opened.enter_context(
                postgres(fsync="on", shared_buffers="256MB")
            ).database()
        for kind, at in places.items():
            store = Store(at)
            say(f"{kind}, empty")
            empty = both_sizes(store, number)
            say(f"{kind}, {rows:,} rows")
            put(Queue(store), "short", SHORT, rows, 10_000)
            full = both_sizes(store, number)
            pruned = prune(store)
            store.close()
            report.ours[f"{kind}, pruned"] = pruned
            for name, value in empty.items():
                report.ours[f"{kind}, {name}"] = value
                report.columns.setdefault(f"{rows:,} rows there", {})[f"{kind}, {name}"] = full[name]
                report.ratios[f"{kind}, {name}, {rows:,} rows / none"] = full[name] / value
        report.limit["SQLite, 200 B, put 1,000 together"] = bare(place / "bare.db", number)
        report.notes.append(f"the disk syncs a page {syncs(place / 'page'):,.0f} times a second")
    report.show(options.json)


if __name__ == "__main__":
    main()
