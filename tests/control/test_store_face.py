"""The store beside an event loop and beside other processes: awaiting, long polling, duties, closing."""

import asyncio
import threading
import time
from functools import partial

import pytest
import sqlalchemy as sa

from rondo.base.errors import NotFound, StorageError, Unavailable
from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.maintain import Maintenance
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import New
from rondo.control.store.store import BACKGROUND, READERS, Store
from support.waiting import run, wait_until


def test_coroutines_await_the_same_calls(store: Store) -> None:
    async def use() -> None:
        group = await Queue(store).put([New("m", "1")], "me")
        assert await Queue(store).group(group.name) == group
        with pytest.raises(NotFound):
            await Queue(store).group("nothing")
        assert await store.read(lambda db: db.scalar(sa.text("SELECT 1"))) == 1

    run(use())


def test_the_event_loop_runs_while_the_store_is_busy(store: Store) -> None:
    release = threading.Event()

    async def use() -> None:
        slow = store.write(lambda db: release.wait(60))
        waiting = [asyncio.ensure_future(store.read(lambda db: release.wait(60))) for _ in range(READERS + 2)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not slow.done(), "the loop got here while the store waits"
        release.set()
        assert await slow
        assert all(await asyncio.gather(*waiting))

    run(use())


def test_a_cancelled_caller_leaves_its_transaction_out(store: Store) -> None:
    release = threading.Event()
    blocking = [store.write(lambda db: release.wait(60)) for _ in range(8)]

    async def use() -> None:
        task = asyncio.ensure_future(Queue(store).put([New("m", "1")], "me"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(use())
    release.set()
    assert all(each.result(60) for each in blocking)
    Queue(store).put([New("m", "2")], "me").result()
    assert len(Queue(store).groups().result()) == 1


def test_a_waiting_worker_is_woken_by_a_submission(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)

    async def use() -> None:
        assert await leases.poll("w", ["m"], 5, 0.0) == []
        waiting = [asyncio.ensure_future(leases.poll(f"w{i}", ["m"], 1, 60)) for i in range(3)]
        other = asyncio.ensure_future(leases.poll("w", ["other"], 1, 0.2))
        await asyncio.sleep(0.05)
        await queue.put([New("tuned", str(i), base="m") for i in range(3)], "me")
        taken = await asyncio.gather(*waiting)
        assert sorted(each[0].body for each in taken) == ["0", "1", "2"]
        assert await other == []

    run(use())
    assert not store.signals._waiters


def test_a_waiting_worker_gets_what_another_process_submits(place: str, store: Store) -> None:
    other = Store(store.place)

    async def use() -> None:
        waiting = asyncio.ensure_future(Leases(store).poll("w", ["m"], 5, 60))
        await asyncio.sleep(0.05)
        await Queue(other).put([New("m", "1")], "me")
        assert len(await waiting) == 1

    run(use())
    other.close()


def test_a_revived_dead_letter_and_an_ended_rest_wake_a_worker(store: Store) -> None:
    config = QueueConfig(lease=0.01, attempts=1)
    queue, leases = Queue(store, config), Leases(store, config)
    group = queue.put([New("m", "1")], "me").result()
    leases.take("w", ["m"], 1).result()
    time.sleep(0.02)
    assert leases.sweep().result().dead == 1

    async def use() -> None:
        waiting = asyncio.ensure_future(leases.poll("w", ["m"], 5, 60))
        await asyncio.sleep(0.05)
        assert await queue.revive(group.name) == 1
        assert len(await waiting) == 1

    run(use())


def test_one_process_at_a_time_maintains_the_queue(store: Store) -> None:
    other = Store(store.place)
    config = QueueConfig(keep=0.0)
    mine = Maintenance(Queue(store, config), Leases(store), seconds=0.3)
    theirs = Maintenance(Queue(other, config), Leases(other), seconds=60)
    Queue(store).put([], "me").result()

    async def use() -> None:
        first = await mine.run()
        assert first is not None
        assert first.pruned == 1
        assert await theirs.run() is None
        await asyncio.sleep(0.35)
        assert await theirs.run() is not None, "the first has not renewed its duty"
        assert await mine.run() is None

    run(use())
    other.close()


def test_closing_ends_threads_and_connections(place: str) -> None:
    store = Store(place)
    for _ in range(3 * READERS):
        store.read(lambda db: db.execute(sa.text("SELECT 1")).all()).result()
    connections = store.database._readers.pool.checkedin()  # type: ignore[attr-defined]
    assert 0 < connections <= READERS
    store.close()
    store.close()
    assert store.database._readers.pool.checkedin() == 0  # type: ignore[attr-defined]
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("store-")])
    with pytest.raises(Unavailable, match="closed"):
        store.read(lambda db: None)
    with pytest.raises(Unavailable, match="closed"):
        store.write(lambda db: None)


def test_background_jobs_wait_for_further_ones(store: Store) -> None:
    begun = threading.Barrier(BACKGROUND)

    def job(number: int) -> int:
        if number < BACKGROUND:
            begun.wait(60)  # all threads of the pool are occupied before one of them asks for a further job
        inner = store.background(lambda: store.background(lambda: number).result())
        return inner.result(60)

    jobs = [store.background(partial(job, number)) for number in range(20)]
    assert [each.result(60) for each in jobs] == list(range(20))


def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises((sa.exc.DBAPIError, StorageError), match=r"read-?only"):
        store.read(lambda db: db.execute(sa.text("DELETE FROM groups"))).result()
