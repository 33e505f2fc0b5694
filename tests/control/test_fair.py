"""Owners share capacity at one priority, and the cost of a lease does not depend on the number of rows."""

import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store.store import Store
from support.stores import new_store


def owners(store: Store, number: int, limit: int = 7) -> list[str]:
    """Owners of the next prompts in the order of their leases; bodies are owners' names."""
    leases, found = Leases(store), list[str]()
    while len(found) < number:
        taken = leases.take("w", ["m"], min(limit, number - len(found))).result()
        assert taken
        found += [each.body for each in taken]
    return found


def put(store: Store, owner: str, number: int, priority: int = 0) -> str:
    return Queue(store).put([New("m", owner, priority)] * number, owner).result().name


def test_two_owners_with_very_many_and_few_prompts_share_capacity(store: Store) -> None:
    put(store, "many", 3000)
    assert set(owners(store, 500)) == {"many"}, "alone, an owner has all of it"
    put(store, "few", 100)
    shared = Counter(owners(store, 200))
    assert abs(shared["few"] - 100) <= 10
    assert set(owners(store, 100)) == {"many"}


def test_an_owner_that_was_idle_has_no_credit(store: Store) -> None:
    """It gets its share from its arrival on, and no more for the time before."""
    put(store, "old", 5)
    owners(store, 5)
    put(store, "busy", 1000)
    owners(store, 700)
    put(store, "old", 200)
    assert 45 <= Counter(owners(store, 100))["old"] <= 55


def test_an_owner_pays_for_nothing_that_it_cancelled(store: Store) -> None:
    cancelled = put(store, "a", 1000)
    put(store, "b", 100)
    Queue(store).cancel(cancelled).result()
    put(store, "a", 100)
    assert 45 <= Counter(owners(store, 100))["a"] <= 55


def test_prompts_one_at_a_time_are_served_in_turn(store: Store) -> None:
    put(store, "many", 300)
    served = Counter[str]()
    for _ in range(40):
        put(store, "single", 1)
        served.update(owners(store, 2, limit=1))
    assert served["single"] == 40
    assert served["many"] == 40


def test_failed_prompts_return_to_the_head_and_give_later_owners_no_start(store: Store) -> None:
    config = QueueConfig(rest=0.0)
    queue, leases = Queue(store, config), Leases(store, config)
    put(store, "many", 500)
    first = leases.take("w", ["m"], 1).result()
    owners(store, 300)
    failed = [Finished(each.id, each.lease, error="no", again=True) for each in first]
    assert leases.finish(failed).result() == ["resting"]
    leases.sweep().result()
    queue.put([New("m", "late")] * 150, "late").result()
    (again,) = leases.take("w", ["m"], 1).result()
    assert (again.id, again.attempts) == (first[0].id, 2)
    assert 45 <= Counter(owners(store, 100))["late"] <= 55


def test_many_owners_get_equal_shares(store: Store) -> None:
    draw = random.Random(7)
    for number in range(8):
        put(store, f"o{number}", draw.randrange(60, 400))
    served = Counter(owners(store, 8 * 50))
    assert max(served.values()) - min(served.values()) <= 2


def test_the_priority_comes_first(store: Store) -> None:
    put(store, "few", 5, priority=1)
    put(store, "many", 20, priority=0)
    assert owners(store, 25) == ["many"] * 20 + ["few"] * 5


def test_a_worker_names_base_models(store: Store) -> None:
    queue, leases = Queue(store), Leases(store)
    group = queue.put(
        [New("tuned-1", "1", base="m"), New("tuned-2", "2", base="m"), New("x", "3")], "me"
    ).result()
    taken = leases.take("w", ["m"], 9).result()
    assert [(each.model, each.body) for each in taken] == [("tuned-1", "1"), ("tuned-2", "2")]
    assert queue.counts().result() == {
        ("tuned-1", "leased"): 1,
        ("tuned-2", "leased"): 1,
        ("x", "queued"): 1,
    }
    assert group.unfinished == 3


def test_lanes_of_a_worker_alternate(store: Store) -> None:
    """A lane that fills up later is neither starved nor preferred."""
    queue, leases = Queue(store), Leases(store)
    queue.put([New("a", "a")] * 300, "me").result()
    leases.take("w", ["a"], 200).result()
    queue.put([New("b", "b")] * 300, "me").result()
    taken = Counter(each.body for each in leases.take("w", ["a", "b"], 100).result())
    assert taken == {"a": 50, "b": 50}


def test_the_cost_of_a_verb_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """SQLite's plan of each statement that a verb executes searches an index; none scans or sorts a table."""
    store = new_store(tmp_path / "rondo.db")
    queue, leases = Queue(store, QueueConfig(keep=0.0)), Leases(store, QueueConfig(lease=0.001, rest=0.0))
    executed: list[tuple[str, Any]] = []

    def note(db: object, cursor: object, statement: str, parameters: Any, *_: object) -> None:
        executed.append((statement, parameters))

    sa.event.listen(store.database._connection, "before_cursor_execute", note)  # type: ignore[attr-defined]
    group = queue.put([New("m", "1")] * 5, "me", key="k").result()
    first, second, *_ = leases.take("w", ["m"], 4).result()
    leases.beat([(first.id, first.lease)]).result()
    leases.finish(
        [Finished(first.id, first.lease, "1"), Finished(second.id, second.lease, error="x")]
    ).result()
    time.sleep(0.01)
    leases.sweep().result()
    leases.sweep().result()
    queue.revive(group.name).result()
    queue.cancel(group.name).result()
    queue.prune().result()
    plans = {statement: explain(store, statement, parameters) for statement, parameters in executed}
    bad = {
        statement: plan
        for statement, plan in plans.items()
        if any(re.search(r"SCAN (requests|groups|bodies|results|other)|TEMP B-TREE", step) for step in plan)
    }
    assert len(plans) > 20
    assert not bad
    lookups = [plan for statement, plan in plans.items() if "requests.place IN" in statement]
    assert lookups
    for plan in lookups:
        assert plan == ["SEARCH requests USING INDEX requests_place (group_id=? AND place=?)"]
    store.close()


def explain(store: Store, statement: str, parameters: Any) -> list[str]:
    one = parameters[0] if isinstance(parameters, list) else parameters
    return store.read(
        lambda db: [row.detail for row in db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", one)]
    ).result()
