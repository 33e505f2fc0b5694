"""PostgreSQL alone: concurrent takers, equal keys at once, deadlocks, restarts, and errors that name the remedy."""

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rondo.base.errors import ConfigError, MissingExtra, Unavailable
from rondo.control.keys import Keys
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store import postgres as of_postgres
from rondo.control.store.check import problems
from rondo.control.store.store import Store
from support.postgres import Cluster, postgres
from support.waiting import run

real = pytest.mark.real


@pytest.fixture
def stores(cluster: Cluster) -> Iterator[list[Store]]:
    """Two gateways on one database."""
    url = cluster.database()
    both = [Store(url), Store(url)]
    yield both
    for each in both:
        each.close()


@real
def test_four_takers_lease_each_prompt_once(stores: list[Store]) -> None:
    queue = Queue(stores[0])
    groups = [queue.put([New("m", str(i)) for i in range(250)], owner).result() for owner in ("a", "b")]
    taken = list[str]()

    async def work(number: int) -> None:
        leases = Leases(stores[number % 2])
        idle = 0
        while idle < 3:
            leased = await leases.take(f"w{number}", ["m"], 20)
            idle = 0 if leased else idle + 1
            taken.extend(each.id for each in leased)
            finished = [Finished(each.id, each.lease, each.body) for each in leased]
            assert await leases.finish(finished) == ["done"] * len(leased)

    async def all_of_them() -> None:
        await asyncio.gather(*(work(number) for number in range(4)))

    run(all_of_them())
    assert len(taken) == 500
    assert set(Counter(taken).values()) == {1}
    for group in groups:
        ended = queue.group(group.name).result()
        assert (ended.unfinished, ended.ended is not None) == (0, True)
    assert queue.counts().result() == {("m", "done"): 500}
    assert stores[0].read(problems).result() == []


@real
def test_an_equal_idempotency_key_at_once_makes_one_group(stores: list[Store]) -> None:
    waited = [
        Queue(store).put([New("m", "1")], "me", key=f"k{number}")
        for number in range(20)
        for store in (*stores, *stores)
    ]
    names = {each.result(60).name for each in waited}
    assert len(names) == 20
    assert Queue(stores[0]).counts().result() == {("m", "queued"): 20}


@real
def test_two_gateways_that_start_at_once_make_one_first_key(stores: list[Store]) -> None:
    made = [Keys(store).make_first() for store in (*stores, *stores)]
    assert sum(each.result(60) is not None for each in made) == 1
    assert len(Keys(stores[0]).all().result()) == 1


@real
def test_a_deadlock_is_tried_again(stores: list[Store]) -> None:
    """Two transactions lock the same two rows in opposite orders."""
    keys = Keys(stores[0])
    ids = [keys.make(name).result()[0].id for name in ("one", "two")]
    meeting, tries = threading.Barrier(2), Counter[str]()

    def rename(first: str, second: str, name: str) -> object:
        def work(db: sa.Connection) -> None:
            tries[name] += 1
            update = sa.text("UPDATE keys SET name = :name WHERE id = :id")
            db.execute(update, {"name": name, "id": first})
            if tries[name] == 1:
                meeting.wait(60)
            db.execute(update, {"name": name, "id": second})

        return work

    waited = [
        stores[0].write(rename(ids[0], ids[1], "a")),  # type: ignore[arg-type]
        stores[1].write(rename(ids[1], ids[0], "b")),  # type: ignore[arg-type]
    ]
    for each in waited:
        each.result(60)
    assert sum(tries.values()) == 3


@real
def test_random_verbs_from_two_gateways_leave_true_counters(stores: list[Store]) -> None:
    """Takes, results, failures, cancellations and revivals at once, with the locks in any order."""
    names = [Queue(stores[0]).put([New("m", "1")] * 20, f"o{i % 3}").result().name for i in range(6)]

    async def work(number: int) -> None:
        draw, store = random.Random(number), stores[number % 2]
        queue, leases = Queue(store), Leases(store)
        for _ in range(25):
            leased = await leases.take(f"w{number}", ["m"], draw.randrange(1, 9))
            told = [
                Finished(each.id, each.lease, "1")
                if draw.random() < 0.5
                else Finished(each.id, each.lease, error="x")
                for each in leased
            ]
            await leases.finish(told)
            await queue.revive(draw.choice(names))
            if draw.random() < 0.05:
                await queue.cancel(draw.choice(names))
            await queue.put([New("m", "2")] * 3, f"o{number}")

    async def all_of_them() -> None:
        await asyncio.gather(*(work(number) for number in range(4)))

    run(all_of_them())
    assert stores[0].read(problems).result() == []


@real
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_of_postgresql_is_an_error_and_then_it_goes_on(how: signal.Signals) -> None:
    with postgres() as cluster:
        store = Store(cluster.database())
        queue = Queue(store)
        group = queue.put([New("m", "1")], "me").result()
        cluster.stop(how)
        with pytest.raises(Unavailable, match=r"is not reachable .*start PostgreSQL"):
            queue.put([New("m", "2")], "me").result()
        with pytest.raises(Unavailable, match="is not reachable"):
            queue.group(group.name).result()
        cluster.start()
        assert queue.group(group.name).result() == group
        queue.put([New("m", "2")], "me").result()
        assert queue.counts().result() == {("m", "queued"): 2}
        store.close()


@real
def test_a_process_killed_at_any_moment_leaves_whole_groups(cluster: Cluster) -> None:
    url, told = cluster.database(), list[str]()
    for lines in (1, 9):
        putter = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("_putter.py"), url], stdout=subprocess.PIPE, text=True
        )
        assert putter.stdout is not None
        told += [putter.stdout.readline().strip() for _ in range(lines)]
        putter.kill()
        told += [line.strip() for line in putter.stdout if line.endswith("\n")]
        putter.wait()
    store = Store(url)
    assert set(told) <= {group.name for group in Queue(store).groups(limit=10_000).result()}
    assert store.read(problems).result() == []
    store.close()


@real
def test_a_row_that_another_session_locks_is_an_error(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Keys(stores[0]).make("one").result()[0]
    release = threading.Event()

    def hold(db: sa.Connection) -> None:
        db.execute(sa.text("UPDATE keys SET name = 'x'"))
        release.wait(60)

    held = stores[0].write(hold)
    time.sleep(0.1)

    def impatient(db: sa.Connection) -> None:
        db.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
        db.execute(sa.text("UPDATE keys SET name = 'y' WHERE id = :id"), {"id": key.id})

    with pytest.raises(Unavailable, match="have been locked by another session"):
        stores[1].write(impatient).result(60)
    release.set()
    held.result(60)


def test_urls_that_cannot_be_used_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="RONDO_STORE_URL names mysql"):
        Store("mysql://host/db")
    with pytest.raises(ConfigError, match="is not a URL"):
        Store("://")
    with pytest.raises(Unavailable, match="start PostgreSQL, or correct RONDO_STORE_URL") as caught:
        Store("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)

    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'")

    monkeypatch.setattr(of_postgres.sa, "create_engine", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'rondo-lab\[postgres\]'"):
        Store("postgresql://me@127.0.0.1:1/db")
