"""The queue's verbs, one at a time; `test_queue_machine.py` has them in any order."""

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from rondo.base.errors import Conflict, NotFound
from rondo.control.config import QueueConfig
from rondo.control.queue.leases import LONGEST_LEASE, Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store import clock
from rondo.control.store.clock import MICROSECONDS
from rondo.control.store.store import Store
from rondo.control.tables import requests


def news(count: int, model: str = "m", priority: int = 0) -> list[New]:
    return [New(model, f'{{"prompt": {i}}}', priority) for i in range(count)]


def test_from_a_prompt_to_its_result(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)
    group = queue.put(news(3), "key-1").result()
    assert (group.total, group.unfinished, group.sealed, group.ended) == (3, 3, True, None)
    first, second = leases.take("w1", ["m"], 2).result()
    assert [first.body, second.body] == ['{"prompt": 0}', '{"prompt": 1}']
    assert first.id == f"{group.name}_000000000"
    assert leases.finish([Finished(first.id, first.lease, '"one"')]).result() == ["done"]
    assert queue.request(first.id).result().result == '"one"', "each is there at once, whatever the others do"
    (third,) = leases.take("w2", ["m"], 9).result()
    done = [Finished(each.id, each.lease, '"more"') for each in (second, third)]
    assert leases.finish(done).result() == ["done", "done"]
    ended = queue.group(group.name).result()
    assert ended.unfinished == 0
    assert ended.ended is not None
    assert [each.worker for each in queue.requests(group.name).result()] == ["w1", "w1", "w2"]
    assert leases.take("w1", ["m"], 9).result() == []


def test_the_most_urgent_of_the_asked_models_come_first_and_then_the_oldest(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)
    queue.put([New("a", "1", 5), New("b", "2", 5), New("c", "3", 0), New("b", "4", 1)], "me").result()
    taken = leases.take("w", ["a", "b"], 3).result()
    assert [each.body for each in taken] == ["4", "1", "2"]
    assert leases.take("w", [], 3).result() == []


def test_a_key_makes_what_is_sent_twice_one_group(store: Store) -> None:
    queue = Queue(store)
    first = queue.put(news(2), "me", key="k").result()
    assert queue.put(news(2), "me", key="k").result() == first
    assert queue.put(news(2), "another", key="k").result().name != first.name
    with pytest.raises(Conflict, match="has been used for something else") as caught:
        queue.put(news(3), "me", key="k").result()
    assert caught.value.param == "idempotency_key"
    assert queue.counts().result() == {("m", "queued"): 4}


def test_a_large_group_comes_in_parts_and_no_part_twice(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)
    group = queue.put(news(2), "me", sealed=False).result()
    done = [Finished(each.id, each.lease, "1") for each in leases.take("w", ["m"], 9).result()]
    leases.finish(done).result()
    assert queue.group(group.name).result().ended is None, "more may come"
    queue.extend(group.name, 2, news(3)).result()
    with pytest.raises(Conflict, match="has 5 requests, not 2"):
        queue.extend(group.name, 2, news(3)).result()
    sealed = queue.extend(group.name, 5, [], seal=True).result()
    assert (sealed.total, sealed.unfinished) == (5, 3)
    with pytest.raises(Conflict, match="is complete, with 5"):
        queue.extend(group.name, 5, news(1)).result()
    empty = queue.put([], "me").result()
    assert empty.ended is not None


def test_a_failure_is_tried_again_after_a_rest_and_the_last_is_a_dead_letter(store: Store) -> None:
    config = QueueConfig(attempts=2, rest=0.0)
    queue, leases = Queue(store, config), Leases(store, config)
    group = queue.put(news(2), "me").result()
    worse, better = leases.take("w", ["m"], 2).result()
    told = [
        Finished(worse.id, worse.lease, error="out of memory", again=True),
        Finished(better.id, better.lease, error="no such role: poet"),
    ]
    assert leases.finish(told).result() == ["resting", "dead"]
    assert leases.finish(told).result() == ["resting", "dead"], "the same told twice"
    assert leases.sweep().result().rested == 1
    (again,) = leases.take("w", ["m"], 9).result()
    assert (again.id, again.attempts) == (worse.id, 2)
    assert leases.finish([Finished(again.id, again.lease, error="out of memory", again=True)]).result() == [
        "dead"
    ]
    assert [each.reason for each in queue.requests(group.name).result()] == [
        "out of memory",
        "no such role: poet",
    ]
    assert queue.revive(group.name).result() == 2
    assert queue.group(group.name).result().ended is None
    assert [each.attempts for each in leases.take("w", ["m"], 9).result()] == [1, 1]


def test_who_vanishes_loses_the_work_and_what_it_says_later_counts_for_nothing(store: Store) -> None:
    config = QueueConfig(lease=0.01, rest=0.0)
    queue, leases = Queue(store, config), Leases(store, config)
    group = queue.put(news(1), "me").result()
    (gone,) = leases.take("gone", ["m"], 1).result()
    time.sleep(0.02)
    assert leases.sweep().result().expired == 1
    assert leases.sweep().result().rested == 1
    (taken,) = leases.take("there", ["m"], 1).result()
    assert leases.beat([(gone.id, gone.lease)]).result() == [gone.id]
    assert leases.finish([Finished(gone.id, gone.lease, '"late"')]).result() == ["stale"]
    assert leases.finish([Finished(taken.id, taken.lease, '"first"')]).result() == ["done"]
    assert leases.finish([Finished(taken.id, taken.lease, '"second"')]).result() == ["done"]
    assert [each.result for each in queue.requests(group.name).result()] == ['"first"']


def test_who_is_late_but_was_not_replaced_is_right(store: Store) -> None:
    config = QueueConfig(lease=0.01)
    queue, leases = Queue(store, config), Leases(store, config)
    queue.put(news(1), "me").result()
    (late,) = leases.take("late", ["m"], 1).result()
    time.sleep(0.02)
    assert leases.sweep().result().expired == 1
    assert leases.finish([Finished(late.id, late.lease, "1")]).result() == ["done"]
    assert queue.counts().result() == {("m", "done"): 1}
    assert leases.sweep().result().rested == 0


def test_a_prompt_that_kills_its_workers_is_a_dead_letter_that_says_so(store: Store) -> None:
    config = QueueConfig(lease=0.005, attempts=2, rest=0.0)
    queue, leases = Queue(store, config), Leases(store, config)
    group = queue.put(news(1), "me").result()
    for name in ("w1", "w2"):
        assert leases.take(name, ["m"], 1).result()
        time.sleep(0.01)
        leases.sweep().result()
        leases.sweep().result()
    (dead,) = queue.requests(group.name).result()
    assert dead.state == "dead"
    assert dead.reason == "its worker (w2) sent no heartbeat for 0.005 s"


def test_setting_the_machines_clock_ends_no_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Queue(store).put(news(1), "me").result()
    Leases(store).take("w", ["m"], 1).result()
    real = time.time_ns()
    for days in (-20, 20):
        monkeypatch.setattr(time, "time_ns", lambda days=days: real + days * 86400 * 10**9)
        assert Leases(store).sweep().result().expired == 0
        again = Store(store.place)
        assert Leases(again).sweep().result().expired == 0, "a process that starts after the jump"
        again.close()


def test_a_gateway_that_starts_gives_leases_their_full_time(store: Store) -> None:
    config = QueueConfig(lease=0.01)
    Queue(store).put(news(1), "me").result()
    Leases(store, config).take("w", ["m"], 1).result()
    time.sleep(0.02)
    started = Leases(store)
    started.renew().result()
    assert started.sweep().result().expired == 0


def test_a_gateway_that_starts_leaves_longer_leases_as_they_are(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)
    queue.put(news(3), "me").result()
    for seconds in (600.0, LONGEST_LEASE, 86400.0):
        leases.take("w", ["m"], 1, seconds).result()
    now = store.write(store.clock.now).result()
    leases.renew().result()
    untils = store.read(lambda db: db.scalars(sa.select(requests.c.until)).all()).result()
    assert [round((until - now) / MICROSECONDS) for until in sorted(untils)] == pytest.approx(
        [600, LONGEST_LEASE, LONGEST_LEASE], abs=60
    )


def test_duties_of_an_earlier_start_of_the_machine_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_boot_id", lambda: "first")
    before = Store(tmp_path / "rondo.db")
    assert before.claim("queue maintenance", 15).result()
    before.close()
    real = time.time_ns()
    monkeypatch.setattr(clock, "_boot_id", lambda: "second")
    monkeypatch.setattr(time, "time_ns", lambda: real - 86400 * 10**9)
    after = Store(tmp_path / "rondo.db")
    other = Store(tmp_path / "rondo.db")
    assert after.claim("queue maintenance", 15).result()
    assert not other.claim("queue maintenance", 15).result(), "a second process has the same origin"
    after.close()
    other.close()


def test_cancelling_ends_what_has_not_ended(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)
    group = queue.put(news(3), "me").result()
    done, begun = leases.take("w", ["m"], 2).result()
    leases.finish([Finished(done.id, done.lease, "1")]).result()
    assert queue.cancel(group.name).result().unfinished == 0
    assert [each.state for each in queue.requests(group.name).result()] == ["done", "cancelled", "cancelled"]
    assert leases.beat([(begun.id, begun.lease)]).result() == [begun.id]
    assert leases.finish([Finished(begun.id, begun.lease, "1")]).result() == ["stale"]
    queue.put(news(4), "me").result()
    assert queue.clear().result() == 4
    assert queue.clear().result() == 0


def test_old_groups_are_pruned_whole_and_others_stay(store: Store) -> None:
    queue, leases = Queue(store, QueueConfig(keep=0.0)), Leases(store)
    old, open_ = queue.put(news(2), "me").result(), queue.put(news(1, "other"), "me").result()
    told = [Finished(each.id, each.lease, "1") for each in leases.take("w", ["m"], 2).result()]
    leases.finish(told).result()
    assert Queue(store).prune().result() == 0, "for a week"
    assert queue.prune().result() == 1
    assert queue.groups().result() == [open_]
    with pytest.raises(NotFound, match=old.name):
        queue.group(old.name).result()
    assert queue.counts().result() == {("other", "queued"): 1}


@pytest.mark.parametrize("id", ["", "gen", "gen_1", "gen_00000000x", "gen_000000000", "_000000000"])
def test_what_is_no_id_is_not_found(store: Store, id: str) -> None:
    with pytest.raises(NotFound, match="there is no request"):
        Queue(store).request(id).result()
    leases = Leases(store)
    assert leases.finish([Finished(id, "x", "1")]).result() == ["unknown"]
    assert leases.beat([(id, "x")]).result() == [id]


def test_groups_are_listed_newest_first(store: Store) -> None:
    queue = Queue(store)
    names = [queue.put(news(1), owner).result().name for owner in ("a", "b", "a")]
    assert [group.name for group in queue.groups().result()] == names[::-1]
    assert [group.name for group in queue.groups("a", limit=1).result()] == names[2:]
    page = queue.groups("a", before=queue.group(names[2]).result().created).result()
    assert [group.name for group in page] == names[:1]
    assert [each.id for each in queue.requests(names[0], after=0).result()] == []


def test_a_call_leases_a_bounded_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rondo.control.queue.leases.LEASED_SIZE", 25)
    queue, leases = Queue(store), Leases(store)
    queue.put([New("m", "x" * size) for size in (10, 10, 10, 50, 5)], "me").result()
    sizes = [[len(each.body) for each in leases.take("w", ["m"], 10).result()] for _ in range(4)]
    assert sizes == [[10, 10], [10], [50], [5]]


def test_counts_of_an_owner(store: Store) -> None:
    queue = Queue(store)
    queue.put([New("m", "1"), New("n", "1")], "a").result()
    queue.put([New("m", "1")], "b").result()
    assert queue.counts("a").result() == {("m", "queued"): 1, ("n", "queued"): 1}
    assert queue.counts("b").result() == {("m", "queued"): 1}
