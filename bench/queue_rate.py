"""The durable queue on this machine's disk, without HTTP: requests taken in, and given out and finished, a second.

Everything is on the disk (`synchronous=FULL`) before it counts. The same again with a million rows in the file. Beside
it: the rows alone, written to a table without an index in transactions of as many; and how often a second the disk says
that a page has been written.
"""

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from statistics import median

from common import Report, arguments, say
from rondo.control.leases import Leases
from rondo.control.queue import Queue
from rondo.control.store import Store
from rondo.control.work import Finished, New

BODY = '{"prompt": "' + "word " * 40 + '", "max_tokens": 128}'
RESULT = '{"text": "' + "word " * 100 + '"}'
TOGETHER, TAKEN = 1000, 100
ROUNDS = 5


def rate(number: int, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return number / (time.perf_counter() - begin)


def put(queue: Queue, number: int) -> None:
    for _ in range(0, number, TOGETHER):
        queue.put([New("m", BODY)] * TOGETHER, "me").result()


def put_one_by_one(queue: Queue, number: int, callers: int = 64) -> None:
    """Each caller waits for its own answer before it sends the next."""

    def one(share: int) -> None:
        for _ in range(share):
            queue.put([New("m", BODY)], "me").result()

    with ThreadPoolExecutor(callers) as pool:
        wait([pool.submit(one, number // callers) for _ in range(callers)])


def work_off(leases: Leases, number: int) -> None:
    for _ in range(0, number, TAKEN):
        taken = leases.take("w", ["m"], TAKEN).result()
        leases.finish([Finished(each.id, each.lease, RESULT) for each in taken]).result()


def rates(store: Store, number: int) -> dict[str, float]:
    queue, leases = Queue(store), Leases(store)
    found: dict[str, list[float]] = {
        "put, 1,000 together": [],
        "put, 64 callers": [],
        "leased and finished": [],
    }
    for _ in range(ROUNDS):
        found["put, 1,000 together"].append(rate(number, lambda: put(queue, number)))
        found["put, 64 callers"].append(rate(number // 4, lambda: put_one_by_one(queue, number // 4)))
        found["leased and finished"].append(rate(number // 2, lambda: work_off(leases, number // 2)))
    return {name: median(values) for name, values in found.items()}


def bare(path: Path, number: int) -> float:
    """Rows a second without index, queue or counts."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE t (body TEXT)")

    def write() -> None:
        for _ in range(0, number, TOGETHER):
            db.execute("BEGIN")
            db.executemany("INSERT INTO t VALUES (?)", [(BODY,)] * TOGETHER)
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
    options = arguments(__doc__ or "")
    number, million = (2000, 20_000) if options.quick else (20_000, 1_000_000)
    report = Report("the durable queue, requests a second")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        place = Path(folder)
        store = Store(place / "rondo.db")
        say("an empty file")
        empty = rates(store, number)
        say(f"{million:,} rows")
        put(Queue(store), million)
        full = rates(store, number)
        store.close()
        limit = {"put, 1,000 together": bare(place / "bare.db", number)}
        report.notes.append(
            f"the disk says {syncs(place / 'page'):,.0f} times a second that a page is written"
        )
    for name, value in empty.items():
        again = f"{name}, {million:,} rows there"
        report.ours[name], report.ours[again] = value, full[name]
        report.ratios[again] = full[name] / value
    report.limit |= limit
    report.show(options.json)


if __name__ == "__main__":
    main()
