"""The queue beside a model of a few lines: whatever is asked in whatever order, and wherever the process dies."""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rondo.control.config import QueueConfig
from rondo.control.leases import Leases
from rondo.control.queue import Queue
from rondo.control.store import Store
from rondo.control.work import Finished, New

CONFIG = QueueConfig(lease=10, attempts=2, rest=4, longest_rest=5)
MODELS = ["a", "b"]


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds


@dataclass
class Expected:
    group: str
    place: int
    model: str
    priority: int
    order: int
    state: str = "queued"
    attempts: int = 0
    lease: str = ""
    until: float = 0.0
    result: str | None = None


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock, self.lives = Hands(), 0
        self.folder = Path(tempfile.mkdtemp())
        self.expected: dict[str, Expected] = {}
        self.given: list[tuple[str, str]] = []
        """Every (id, lease) that ever was, those that are over included."""
        self.groups: list[str] = []
        """In the order of their creation: names are random, and hypothesis needs the same draws in each replay."""
        self.store = Store(self.folder / "0" / "rondo.db")
        self._work_with(self.store)

    def _work_with(self, store: Store) -> None:
        self.queue, self.leases = Queue(store, CONFIG), Leases(store, CONFIG, self.clock)  # type: ignore[arg-type]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(models=st.lists(st.sampled_from(MODELS), max_size=4), priority=st.integers(-1, 1))
    def put(self, models: list[str], priority: int) -> None:
        group = self.queue.put([New(model, f'"{model}"', priority) for model in models], "me").result()
        self.groups.append(group.name)
        for place, model in enumerate(models):
            id = f"{group.name}_{place:09d}"
            self.expected[id] = Expected(group.name, place, model, priority, len(self.expected))

    @rule(models=st.sets(st.sampled_from(MODELS), min_size=1), limit=st.integers(1, 4))
    def take(self, models: set[str], limit: int) -> None:
        taken = self.leases.take("worker", sorted(models), limit).result()
        waiting = [
            id for id, each in self.expected.items() if each.state == "queued" and each.model in models
        ]
        waiting.sort(key=lambda id: (self.expected[id].priority, self.expected[id].order))
        assert [each.id for each in taken] == waiting[:limit]
        for each in taken:
            known = self.expected[each.id]
            known.state, known.lease, known.attempts = "leased", each.lease, known.attempts + 1
            known.until = self.clock.now() + CONFIG.lease
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
            known.until = self.clock.now() + CONFIG.lease

    @precondition(lambda self: self.given)
    @rule(data=st.data(), how=st.sampled_from(["well", "badly", "badly, again"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        id, lease = data.draw(st.sampled_from(self.given))
        result, error = ('"said"', None) if how == "well" else (None, "it broke")
        (verdict,) = self.leases.finish(
            [Finished(id, lease, result, error, again=how == "badly, again")]
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
            self._fail(known, again=how == "badly, again")
            assert verdict == known.state

    def _fail(self, known: Expected, again: bool) -> None:
        known.state = "resting" if again and known.attempts < CONFIG.attempts else "dead"
        known.until = self.clock.now() + CONFIG.rest

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.leases.sweep()
        for known in self.expected.values():
            if known.state in ("leased", "resting") and known.until <= self.clock.now():
                if known.state == "leased":
                    self._fail(known, again=True)
                else:
                    known.state = "queued"

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.groups))
        assert self.queue.cancel(name).unfinished == 0
        for known in self.expected.values():
            if known.group == name and known.state in ("queued", "leased", "resting"):
                known.state = "cancelled"

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.groups))
        dead = [each for each in self.expected.values() if each.group == name and each.state == "dead"]
        assert self.queue.revive(name).result() == len(dead)
        for known in dead:
            known.state, known.attempts, known.lease = "queued", 0, ""

    @rule()
    def dies(self) -> None:
        """As by kill -9: what is in the files is all there is."""
        self.lives += 1
        place = self.folder / str(self.lives)
        place.mkdir()
        for name in ("rondo.db", "rondo.db-wal"):
            if (self.store.path.with_name(name)).exists():
                shutil.copy(self.store.path.with_name(name), place / name)
        self.store.close()
        self.store = Store(place / "rondo.db")
        self._work_with(self.store)
        for known in self.expected.values():
            if known.state == "leased":
                known.until = self.clock.now() + CONFIG.lease

    @invariant()
    def is_as_expected(self) -> None:
        seen = {
            each.id: (each.state, each.attempts, each.result)
            for name in self.groups
            for each in self.queue.requests(name)
        }
        assert seen == {id: (each.state, each.attempts, each.result) for id, each in self.expected.items()}
        assert self.queue.counts() == Counter((each.model, each.state) for each in self.expected.values())
        for name in self.groups:
            group = self.queue.group(name)
            own = [each.state for each in self.expected.values() if each.group == name]
            assert group.unfinished == sum(state in ("queued", "leased", "resting") for state in own)
            assert (group.ended is not None) == (group.unfinished == 0)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
