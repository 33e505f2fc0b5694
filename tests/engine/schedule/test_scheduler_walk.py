"""Anything in any order: scheduler and cache, driven at random, with every invariant checked after each step."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schedule.test_scheduler import finish_step, group
from rondo.engine.kv.blocks import GONE, BlockPool, Table
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.kv.swap import Cost, HostPool, Swap
from rondo.engine.kv.window import Window
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler
from support.fake_device import FakeDevice

SIZE = 2
STOP = 2
MOST_NEW = 6
ACTING = 40
"""Steps in which things are done from outside; after them what is left must come to its end."""
PRICES = {"no host": None, "always": (1e9, 1.0), "never": (1e-9, 1.0), "by length": (1.5, 1.0)}
"""Blocks that move in a second, and tokens that are computed in one."""
VIEWS = [(None,), (2,), (3,), (5,), (8,), (None, 3), (None, 8), (None, 5, 2), (8, 3)]
"""How far back the layers of each group see."""

WAITING = ("waiting", "held", "preempted", "swapped")
RUNNING = ("prefilling", "decoding", "leading", "riding")


def held(table: Table) -> list[int]:
    return [block for block in table.blocks if block != GONE]


class Walk:
    def __init__(
        self,
        seed: int,
        blocks: int,
        budget: int,
        seqs: int,
        view: tuple[int | None, ...],
        price: str,
        host: int,
        prefix_cache: bool,
        batching: str,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.budget = budget
        self.seqs = seqs
        self.kind = "in one group" if len(view) == 1 else "in one of several groups"
        self.longest = 8 if view == (None,) else 39
        if None in view:
            self.longest = min(self.longest, blocks * SIZE - MOST_NEW)
        groups = []
        for tokens in view:
            window = None if tokens is None else Window(tokens, SIZE)
            count = blocks if window is None else rng.randrange(window.most_blocks, 12)
            groups.append(BlockPool(count, SIZE, prefix_cache, window))
        self.pool = GroupedPool(groups)
        self.swap = None
        if PRICES[price] is not None:
            moved, computed = PRICES[price]
            cost = Cost(moved, computed, tuple((tokens, 0.1) for tokens in view))
            self.swap = Swap(self.pool, [HostPool(host, 1) for _ in view], cost)
        self.scheduler = s = Scheduler(self.pool, seqs, budget, 1000, batching, self.swap)
        self.device = FakeDevice(s)
        self.alive: list[Request] = []
        self.arrivals = 0
        self.seen: Counter[str] = Counter()
        settle = s.commit_drafts

        def settle_both(requests: list[Request]) -> None:
            self.device.accept(requests)
            settle(requests)

        s.commit_drafts = settle_both

    def run(self) -> Counter[str]:
        """What has happened, and how often."""
        for at in range(6000):
            if at < ACTING:
                self.act()
            elif at == ACTING:
                self.scheduler.release()
            elif not self.scheduler.has_work:
                break
            self.step()
        assert not self.alive
        assert self.pool.used == 0
        assert self.swap is None or not any(host.used for host in self.swap.hosts)
        return self.seen

    def act(self) -> None:
        rng, s = self.rng, self.scheduler
        if rng.random() < 0.5:
            self.arrive()
        begun = [r for r in self.alive if r.state == "running" or r.preemptions]
        some = rng.choice([self.alive, begun])
        if some and rng.random() < 0.2:
            self.end(rng.choice(some), "aborted")
        if rng.random() < 0.06:
            self.note_all("pushed over")
            s.set_weight_version(s.weight_version + 1)
        if rng.random() < 0.06:
            self.note_all("fell asleep")
            s.preempt_all()
            self.device.lose()
            assert not s.running
            assert self.pool.used == 0
        if rng.random() < 0.02:
            self.pool.forget()
        if rng.random() < (0.4 if s.holding else 0.06):
            (s.release if s.holding else s.hold)()

    def arrive(self) -> None:
        rng = self.rng
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, self.longest))]
        samples = group(
            rng.choice([1, 1, 2, 5]), self.arrivals, tokens, rng.randint(1, MOST_NEW), rng.randrange(2)
        )
        adapter = rng.choice([0, 0, 1, 2])
        for sample in samples:
            sample.adapter_key = adapter
            self.scheduler.add(sample)
        self.arrivals += len(samples)
        self.alive += samples

    def end(self, request: Request, how: str) -> None:
        self.seen[f"{how} {self.doing(request)}"] += 1
        self.alive.remove(request)
        self.scheduler.finish(request)

    def note_all(self, what: str) -> None:
        self.seen.update({f"{what} {self.doing(request)}" for request in self.alive})

    def doing(self, request: Request) -> str:
        if request.state == "waiting":
            if request.host:
                return "swapped"
            if request.preemptions:
                return "preempted"
            return "held" if self.scheduler.holding else "waiting"
        if request.leader is not None:
            return "riding"
        if request.followers:
            return "leading"
        return "decoding" if request.generated else "prefilling"

    def step(self) -> None:
        rng, s, device = self.rng, self.scheduler, self.device
        device.settle(self.alive)
        s.lookahead = rng.choice([0, 1, 5])
        fresh = [r for r in self.alive if r.first_cached < 0]
        plan = s.schedule()
        assert not (s.holding and any(r in fresh for r in plan.admitted))
        self.check_plan(plan)
        self.note_plan(plan)
        plan = self.propose(plan)
        device.run(plan)
        device.settle(self.alive)
        rode = [(r, r.leader) for r in self.alive if r.leader is not None]
        done = finish_step(s, plan, self.draw, self.accepted, STOP)
        for request in done:
            self.alive.remove(request)
        self.seen["forked"] += sum(r in s.running and leader in s.running for r, leader in rode)
        broken = [r for r in s.running if rng.random() < 0.005]
        for request in broken:
            self.end(request, "broke")
        if broken:
            self.pool.forget()
        self.check()

    def draw(self) -> int:
        return STOP if self.rng.random() < 0.05 else self.rng.randrange(2)

    def propose(self, plan: StepPlan) -> StepPlan:
        """Not everybody who may carry proposals has some."""
        without = [r for r in plan.ahead if self.rng.random() < 0.2]
        self.scheduler.commit_drafts(without)
        return replace(plan, ahead=[r for r in plan.ahead if r not in without])

    def accepted(self, request: Request) -> int:
        count = self.rng.randrange(request.ahead + 1)
        self.seen["accepted"] += count > 0
        self.seen["rejected"] += count < request.ahead
        return count

    def note_plan(self, plan: StepPlan) -> None:
        self.seen["swapped out"] += any(plan.swap_out)
        self.seen["swapped in"] += any(plan.swap_in)
        self.seen["copied"] += any(plan.copies)
        for request in plan.admitted:
            if request.leader is not None:
                self.seen["rode"] += 1
            elif request.cached and not request.preemptions:
                self.seen[f"hit with {'an adapter' if request.adapter_key else 'none'}"] += 1
            if any(table.passed for table in request.tables) and not request.generated:
                self.seen[f"began behind {self.kind}"] += 1
        for request in plan.preempted:
            self.seen["gave way, swapped" if request.host else "gave way"] += 1

    def check_plan(self, plan: StepPlan) -> None:
        s, alive = self.scheduler, self.alive
        moved = plan.decodes + plan.chunks
        moves = [*plan.swap_out, *plan.swap_in, *plan.copies]
        assert moved or not any(moves)
        assert moved or not s.running
        assert sum(r.planned + r.ahead for r in moved) <= self.budget
        assert s.num_running <= self.seqs
        for r in moved:
            assert len({len(table.blocks) for table in r.tables}) == 1
            assert len(r.tables[0].blocks) * SIZE >= r.computed + r.planned + r.ahead
        assert plan.ahead == [r for r in moved if r.ahead]
        for r in plan.ahead:
            assert r.remaining == r.planned == 1
            assert not r.followers
            assert r not in plan.admitted
            assert len(r.tokens) + r.ahead < r.max_length
        everyone = [each for r in s.running for each in (r, *r.followers)]
        rows = [r.row for r in everyone]
        assert len(set(rows)) == len(rows) == s.num_running
        assert {id(r) for r in alive if r.state == "running"} == {id(r) for r in everyone}
        assert s.num_waiting == sum(r.state == "waiting" for r in alive)
        assert s.running == sorted(s.running, key=lambda r: r.order)
        assert all(to != source for copies in plan.copies for to, source in copies)
        assert all(r.row == -1 for r in alive if r.state == "waiting")

    def check(self) -> None:
        s, pool = self.scheduler, self.pool
        pool.check()
        for g, each in enumerate(pool.groups):
            counts = Counter(block for r in s.running for block in held(r.tables[g]))
            assert [counts[block] for block in range(each.num_blocks)] == each._refs
        self.device.check_published()
        for r in self.alive:
            r.check()
            assert r.state == "running" or not r.tables
        for r in s.running:
            assert not r.ahead
            assert not r.planned
            assert not r.publishable or r.weight_version == s.weight_version
            for each, table in zip(pool.groups, r.tables, strict=True):
                assert len(table.blocks) <= pool.blocks_for(len(r.tokens))
                assert table.blocks[: table.passed] == [GONE] * table.passed
                assert GONE not in table.blocks[table.passed :]
                assert each.window is None or len(held(table)) <= each.window.most_blocks
                self.seen[f"passed {self.kind}"] += table.passed > 0
        claims = [r.claim for r in s.running if r.claim is not None]
        assert s._prefixes._claims == set(claims)
        if self.swap is not None:
            swapped = [r for r in self.alive if r.host]
            for g, host in enumerate(self.swap.hosts):
                host.check([r.host[g].blocks for r in swapped])
            assert self.swap.num_requests == len(swapped)
            assert s.counters.swaps <= s.counters.preemptions
            for r in swapped:
                self.device.check_swapped(r)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.integers(8, 24),
    budget=st.integers(1, 20),
    seqs=st.integers(1, 6),
    view=st.sampled_from(VIEWS),
    price=st.sampled_from(list(PRICES)),
    host=st.integers(1, 30),
    prefix_cache=st.sampled_from([True, True, False]),
    batching=st.sampled_from(["continuous", "continuous", "dynamic", "static"]),
)
def test_everything_finishes_and_no_block_is_lost(**setting):
    Walk(**setting).run()


def test_a_walk_does_all_of_it():
    """Else the test above would say less than it seems to."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        seen += Walk(
            seed,
            blocks=8 + seed % 9,
            budget=6 + seed % 14,
            seqs=3 + seed % 4,
            view=[(None,), (None, 3), (3,), (8,), (None, 8, 3)][seed % 5],
            price=["always", "by length", "no host"][seed % 3],
            host=8 + seed % 20,
            prefix_cache=True,
            batching="continuous",
        ).run()
    expected = {
        *(f"aborted {doing}" for doing in (*WAITING, *RUNNING)),
        *(f"{what} {doing}" for what in ("pushed over", "fell asleep") for doing in (*WAITING, *RUNNING)),
        *(f"broke {doing}" for doing in RUNNING if doing != "riding"),
        *(
            "rode",
            "forked",
            "copied",
            "passed in one group",
            "passed in one of several groups",
            "began behind in one group",
            "began behind in one of several groups",
            "hit with an adapter",
            "hit with none",
        ),
        *("gave way", "gave way, swapped", "swapped out", "swapped in", "accepted", "rejected"),
    }
    assert expected - {what for what, count in seen.items() if count >= 3} == set()
