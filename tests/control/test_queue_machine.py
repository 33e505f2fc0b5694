"""The queue beside a model of a few lines: whatever is asked in whatever order, and wherever the process dies."""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store.clock import MICROSECONDS
from rondo.control.store.store import Store
from support.postgres import Cluster
from support.stores import new_store

CONFIG = QueueConfig(lease=10, attempts=2, rest=4, longest_rest=5)
MODELS = ["a", "b"]
OWNERS = ["me", "you"]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where a sync costs nothing: the test copies the files itself."""


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self, db: sa.Connection) -> int:
        return int(self.seconds * MICROSECONDS)


@dataclass
class Expected:
    group: str
    place: int
    model: str
    priority: int
    owner: str
    order: int
    turn: int
    state: str = "queued"
    attempts: int = 0
    lease: str = ""
    until: float = 0.0
    cohort: int | None = None
    result: str | None = None


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock, self.lives = SetClock(), 0
        self.expected: dict[str, Expected] = {}
        self.given: list[tuple[str, str]] = []
        """Every (id, lease) that ever was, those that are over included."""
        self.groups: list[str] = []
        """In the order of their creation: names are random, and hypothesis needs the same draws in each replay."""
        self.store = self.open()
        self._work_with(self.store)

    def open(self) -> Store:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        return new_store(self.folder / "0" / "rondo.db")

    def open_after_death(self) -> Store:
        """As by kill -9: the files are copied as they are."""
        place = self.folder / str(self.lives)
        place.mkdir()
        for name in ("rondo.db", "rondo.db-wal"):
            if (file := Path(self.store.name).with_name(name)).exists():
                shutil.copy(file, place / name)
        self.store.close()
        return Store(place / "rondo.db")

    def remove(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def teardown(self) -> None:
        self.remove()

    def _work_with(self, store: Store) -> None:
        self.queue, self.leases = Queue(store, CONFIG), Leases(store, CONFIG, self.clock)
        self.leases.renew().result()

    def _plain(self, model: str, priority: int) -> list[Expected]:
        return [each for each in self._queued(model, priority) if each.cohort is None]

    def _suspects(self, models: set[str], limit: int) -> list[Expected]:
        """The next cohort of suspects."""
        all_of_them = [
            each for each in self.expected.values() if each.state == "queued" and each.model in models
        ]
        found = [(each.cohort, each) for each in all_of_them if each.cohort is not None]
        found.sort(key=lambda pair: (pair[1].priority, -pair[0], pair[1].turn, pair[1].order))
        taken, least = list[Expected](), limit
        for cohort, each in found:
            least = min(least, cohort)
            if len(taken) == least:
                break
            taken.append(each)
        return taken

    def _queued(self, model: str, priority: int) -> list[Expected]:
        lane = [each for each in self.expected.values() if (each.model, each.priority) == (model, priority)]
        return sorted((each for each in lane if each.state == "queued"), key=lambda e: (e.turn, e.order))

    def _next_turn(self, model: str, priority: int, owner: str) -> int:
        queued = self._queued(model, priority)
        own = [each.turn + 1 for each in queued if each.owner == owner]
        return max([each.turn for each in queued[:1]] + own, default=0)

    @rule(
        models=st.lists(st.sampled_from(MODELS), max_size=4),
        priority=st.integers(-1, 1),
        owner=st.sampled_from(OWNERS),
    )
    def put(self, models: list[str], priority: int, owner: str) -> None:
        group = self.queue.put([New(model, f'"{model}"', priority) for model in models], owner).result()
        self.groups.append(group.name)
        for place, model in enumerate(models):
            id, turn = f"{group.name}_{place:09d}", self._next_turn(model, priority, owner)
            self.expected[id] = Expected(group.name, place, model, priority, owner, len(self.expected), turn)

    @rule(
        models=st.sets(st.sampled_from(MODELS), min_size=1), limit=st.integers(1, 9), held=st.integers(0, 1)
    )
    def take(self, models: set[str], limit: int, held: int) -> None:
        waiting = []
        for model in models:
            for priority in (-1, 0, 1):
                lane = self._plain(model, priority)
                waiting += [(priority, each.turn - lane[0].turn, each.order) for each in lane]
        waiting.sort()
        cohort = self._suspects(models, limit)
        first = cohort and all(cohort[0].priority <= priority for priority, _, _ in waiting)
        assert self.leases.suspects(models).result() == bool(first)
        taken = self.leases.take("worker", sorted(models), limit, held=held).result()
        assert all(each.suspect == bool(first and not held) for each in taken)
        assert [self.expected[each.id].order for each in taken] == (
            [each.order for each in cohort]
            if first and not held
            else [order for *_, order in waiting[:limit]]
        )
        for each in taken:
            known = self.expected[each.id]
            known.state, known.lease, known.attempts = "leased", each.lease, known.attempts + 1
            known.until = self.clock.seconds + CONFIG.lease
            assert each.attempts == known.attempts
            self.given.append((each.id, each.lease))

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        id, lease = data.draw(st.sampled_from(self.given))
        lost = self.leases.beat([(id, lease)]).result()
        known = self.expected[id]
        own = known.state == "leased" and known.lease == lease
        assert lost == ([] if own else [id])
        if own:
            known.until = self.clock.seconds + CONFIG.lease

    @precondition(lambda self: self.given)
    @rule(
        data=st.data(),
        how=st.sampled_from(["well", "badly", "badly, again"]),
        in_flight=st.sampled_from([0, 1, 5, 40]),
    )
    def finish(self, data: st.DataObject, how: str, in_flight: int) -> None:
        id, lease = data.draw(st.sampled_from(self.given))
        result, error = ('"said"', None) if how == "well" else (None, "it broke")
        (verdict,) = self.leases.finish(
            [Finished(id, lease, result, error, how == "badly, again", in_flight=in_flight)]
        ).result()
        known = self.expected[id]
        if known.lease != lease or known.state == "cancelled":
            assert verdict == "stale"
        elif known.state in ("done", "dead"):
            assert verdict == known.state
        elif how == "well":
            assert verdict == "done"
            known.state, known.result = "done", result
        elif known.state in ("resting", "queued"):
            assert verdict == "resting"
        else:
            self._fail(known, how == "badly, again", in_flight)
            assert verdict == ("resting" if known.state == "queued" else known.state)

    def _fail(self, known: Expected, again: bool, in_flight: int) -> None:
        if again and in_flight > 1 and known.cohort != 1:
            lane = self._queued(known.model, known.priority)
            known.state, known.turn = "queued", lane[0].turn if lane else 0
            known.attempts -= 1
            known.cohort = max(1, min(in_flight, known.cohort or in_flight) // 4)
            return
        known.state = "resting" if again and known.attempts < CONFIG.attempts else "dead"
        known.until = self.clock.seconds + CONFIG.rest

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.leases.sweep().result()
        due = [each for each in self.expected.values() if each.state in ("leased", "resting")]
        due = [each for each in due if each.until <= self.clock.seconds]
        if any(each.state == "leased" for each in due):
            soon = self.clock.seconds + CONFIG.lease / 2
            also = [each for each in self.expected.values() if each.state == "leased" and each not in due]
            due += [each for each in also if each.until <= soon]
        expired = [each for each in due if each.state == "leased"]
        rested = [each for each in due if each.state == "resting"]
        heads = {
            each.order: min((other.turn for other in self._queued(each.model, each.priority)), default=0)
            for each in rested
        }
        for known in expired:
            self._fail(known, True, len(expired))
        for known in rested:
            known.state, known.turn = "queued", heads[known.order]

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.groups))
        assert self.queue.cancel(name).result().unfinished == 0
        for known in self.expected.values():
            if known.group == name and known.state in ("queued", "leased", "resting"):
                known.state = "cancelled"

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.groups))
        dead = [each for each in self.expected.values() if each.group == name and each.state == "dead"]
        assert self.queue.revive(name).result() == len(dead)
        for known in sorted(dead, key=lambda each: each.order):
            known.turn = self._next_turn(known.model, known.priority, known.owner)
            known.state, known.attempts, known.lease = "queued", 0, ""

    @rule()
    def dies(self) -> None:
        self.lives += 1
        self.store = self.open_after_death()
        self._work_with(self.store)
        for known in self.expected.values():
            if known.state == "leased":
                known.until = self.clock.seconds + CONFIG.lease

    @invariant()
    def is_as_expected(self) -> None:
        seen = {
            each.id: (each.state, each.attempts, each.result)
            for name in self.groups
            for each in self.queue.requests(name).result()
        }
        assert seen == {id: (each.state, each.attempts, each.result) for id, each in self.expected.items()}
        assert self.queue.counts().result() == Counter(
            (each.model, each.state) for each in self.expected.values()
        )
        for name in self.groups:
            group = self.queue.group(name).result()
            own = [each.state for each in self.expected.values() if each.group == name]
            assert group.unfinished == sum(state in ("queued", "leased", "resting") for state in own)
            assert (group.ended is not None) == (group.unfinished == 0)


class PostgresMachine(QueueMachine):
    cluster: Cluster

    def open(self) -> Store:
        self.url = self.cluster.database()
        return Store(self.url)

    def open_after_death(self) -> Store:
        self.store.close()
        return Store(self.url)

    def remove(self) -> None:
        self.store.close()


@pytest.mark.real
class TestQueueOnPostgres(PostgresMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Cluster) -> None:
        PostgresMachine.cluster = cluster


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
