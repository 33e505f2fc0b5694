from collections.abc import Callable

import pytest

from rondo.base.errors import Overloaded
from rondo.client.types import SamplingParams
from rondo.engine.kv.blocks import BlockPool
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler


def make(
    blocks=64, size=4, seqs=8, budget=32, queued=1000, prefix_cache=True, batching="continuous"
) -> Scheduler:
    pool = GroupedPool([BlockPool(blocks, size, prefix_cache)])
    return Scheduler(pool, seqs, budget, queued, batching)


def blocks_of(request: Request) -> list[int]:
    (table,) = request.tables
    return table.blocks


def request(arrival: int, tokens: list[int] | int, new: int = 4, priority: int = 0) -> Request:
    ids = [100 * arrival + i for i in range(tokens)] if isinstance(tokens, int) else list(tokens)
    return Request(f"r{arrival}", 0, ids, SamplingParams(), len(ids) + new, arrival, priority)


def finish_step(
    scheduler: Scheduler,
    plan: StepPlan,
    token: Callable[[], int] = lambda: 7,
    accepted: Callable[[Request], int] = lambda r: 0,
    stop: int = -1,
) -> list[Request]:
    """What the core does after a step, with a model that says `token()` and agrees to `accepted` proposals. A request
    ends at the token `stop`, if not before."""
    scheduler.commit(plan)
    moved = [each for r in plan.decodes + plan.chunks if r.remaining == 0 for each in (r, *r.followers)]
    for r in moved:
        r.check()
    for r in moved:
        r.tokens.append(token())
    for r in plan.ahead:
        r.tokens += [token() for _ in range(accepted(r))]
    scheduler.commit_drafts(plan.ahead)
    done = [r for r in moved if len(r.tokens) >= r.max_length or r.tokens[-1] == stop]
    scheduler.finish_all(done)
    for r in moved:
        scheduler.fork(r)
    return done


def group(n: int, arrival: int, tokens: list[int] | int, new: int = 4, priority: int = 0) -> list[Request]:
    samples = [request(arrival, tokens, new, priority) for _ in range(n)]
    for index, sample in enumerate(samples):
        sample.index, sample.arrival, sample.siblings = index, arrival + index, samples
    return samples


def test_prefill_is_chunked_to_the_budget_and_decodes_go_first():
    s = make(budget=10)
    a, b = request(0, 3), request(1, 20)
    s.add(a)
    s.add(b)
    plan = s.schedule()
    assert [(r.id, r.planned) for r in plan.chunks] == [("r0", 3), ("r1", 7)]
    finish_step(s, plan)
    plan = s.schedule()
    assert [(r.id, r.planned) for r in plan.decodes] == [("r0", 1)]
    assert [(r.id, r.planned) for r in plan.chunks] == [("r1", 9)]
    finish_step(s, plan)
    assert b.computed == 16
    assert a.generated == 2


def test_the_newest_gives_way_and_comes_back():
    s = make(blocks=4, size=4, prefix_cache=False)
    a, b = request(0, 8, new=8), request(1, 7, new=8)
    s.add(a)
    s.add(b)
    finish_step(s, s.schedule())
    plan = s.schedule()
    assert [r.id for r in plan.preempted] == ["r1"]
    assert [r.id for r in plan.decodes] == ["r0"]
    assert b.computed == 0
    assert b.generated == 1
    assert b.tables == []
    while a.state != "finished":
        finish_step(s, plan)
        plan = s.schedule()
    while s.has_work:
        finish_step(s, plan)
        plan = s.schedule()
    assert b.generated == 8
    assert b.preemptions == 1
    s.pool.check()
    assert s.pool.used == 0


def test_priority_beats_arrival_in_admission_and_preemption():
    s = make(seqs=1)
    s.add(request(0, 4, priority=5))
    s.add(request(1, 4, priority=1))
    assert [r.id for r in s.schedule().admitted] == ["r1"]
    s = make(blocks=4, size=4, prefix_cache=False)
    old, urgent = request(0, 8, new=8, priority=5), request(1, 7, new=8, priority=1)
    s.add(old)
    s.add(urgent)
    preempted = []
    while urgent.state != "finished":
        plan = s.schedule()
        preempted += plan.preempted
        finish_step(s, plan)
    assert preempted == [old]


def test_siblings_wait_for_the_shared_prompt_and_then_hit_it():
    s = make(budget=8)
    prompt = list(range(18))
    group = [request(i, prompt) for i in range(4)]
    for r in group:
        s.add(r)
    while group[0].computed < 16:
        plan = s.schedule()
        assert plan.chunks == [group[0]]
        finish_step(s, plan)
    plan = s.schedule()
    assert {r.id for r in plan.admitted} == {"r1", "r2", "r3"}
    assert all(r.cached == 16 and r.planned == 2 for r in plan.admitted)
    assert len({blocks_of(r)[3] for r in group}) == 1
    finish_step(s, plan)
    assert s.counters.prefix_hits == 48


def test_a_new_weight_version_never_hits_and_old_requests_stop_publishing():
    s = make()
    prompt = list(range(16))
    first = request(0, prompt, new=8)
    s.add(first)
    finish_step(s, s.schedule())
    s.set_weight_version(1)
    for _ in range(5):
        finish_step(s, s.schedule())
    second = request(1, [*prompt, 7, 7, 7, 7, 7, 7])
    s.add(second)
    assert s.schedule().admitted == [second]
    assert second.cached == 0
    s.pool.check()


@pytest.mark.parametrize("batching", ["dynamic", "static"])
def test_a_batch_is_taken_when_the_last_has_ended(batching):
    s = make(seqs=2, batching=batching)
    requests = [request(0, 4, new=2), request(1, 4, new=4), request(2, 4, new=2)]
    for r in requests:
        s.add(r)
    assert finish_step(s, s.schedule()) == []
    assert finish_step(s, s.schedule()) == [requests[0]]
    while requests[1].state == "running":
        assert requests[2].state == "waiting"
        finish_step(s, s.schedule())
    if batching == "static":
        assert s.schedule().empty  # another one might come
    assert s.schedule().admitted == [requests[2]]


def test_a_batch_is_no_larger_than_it_was_when_it_began():
    s = make(seqs=4, budget=8, batching="dynamic")
    first, late = [request(i, 4, new=9) for i in range(4)], group(5, 4, 4, priority=-1)
    for r in first:
        s.add(r)
    finish_step(s, s.schedule())
    assert s.num_running == 2
    s.finish(first[0])  # three rows are free now, but two places
    for r in late:
        s.add(r)
    plan = s.schedule()
    assert plan.admitted == late[:2]
    finish_step(s, plan)
    assert s.schedule().admitted == []


def test_a_static_batch_waits_while_more_come():
    s = make(seqs=3, batching="static")
    for arrival in range(3):
        assert s.schedule().empty
        s.add(request(arrival, 4))
    assert len(s.schedule().admitted) == 3


def test_the_queue_is_bounded():
    s = make(queued=2)
    s.add(request(0, 4))
    s.add(request(1, 4))
    with pytest.raises(Overloaded):
        s.add(request(2, 4))


def test_aborts_in_every_state_leave_nothing_behind():
    s = make(blocks=6, size=4, seqs=2, budget=6)
    waiting, prefilling, decoding = request(2, 4), request(1, 12), request(0, 4)
    for r in (decoding, prefilling, waiting):
        s.add(r)
    finish_step(s, s.schedule())
    assert decoding.generated == 1
    assert 0 < prefilling.computed < 12
    assert waiting.state == "waiting"
    for r in (waiting, prefilling, decoding):
        s.finish(r)
        s.pool.check()
    assert not s.has_work
    assert s.pool.used == 0
    assert s.schedule().empty


def test_samples_ride_together_and_fork_where_they_part():
    s = make(size=4)
    samples = group(4, 0, 6, new=8)
    for r in samples:
        s.add(r)
    plan = s.schedule()
    assert plan.admitted == samples
    assert plan.chunks == [samples[0]]
    assert s.num_running == 4
    assert s.num_waiting == 0
    finish_step(s, plan, iter([1, 2, 1, 2]).__next__)
    assert [r.leader for r in samples] == [None, None, samples[0], samples[1]]
    assert blocks_of(samples[0])[0] == blocks_of(samples[1])[0]
    assert blocks_of(samples[0])[1] != blocks_of(samples[1])[1]
    plan = s.schedule()
    assert plan.copies == [[(blocks_of(samples[1])[1], blocks_of(samples[0])[1])]]
    assert plan.decodes == samples[:2]
    finish_step(s, plan)
    s.finish(samples[1])
    assert s.running == [samples[0], samples[3]]
    assert samples[3].computed == 7
    while s.has_work:
        finish_step(s, s.schedule())
    s.pool.check()
    assert s.pool.used == 0
    assert s.num_running == 0


def test_a_fork_without_a_block_left_waits_and_comes_back():
    s = make(blocks=3, size=4, prefix_cache=False)
    samples = group(2, 0, 9, new=3)
    for r in samples:
        s.add(r)
    finish_step(s, s.schedule(), iter([1, 2]).__next__)
    assert samples[1].state == "waiting"
    while s.has_work:
        finish_step(s, s.schedule())
    assert [r.generated for r in samples] == [3, 3]
    assert samples[1].tokens[9] == 2
    s.pool.check()
    assert s.pool.used == 0


def test_proposals_get_what_nobody_else_wants():
    s = make(budget=10, size=4, blocks=16)
    s.lookahead = 4
    first, second = request(0, 4, new=20), request(1, 4, new=20)
    s.add(first)
    s.add(second)
    plan = s.schedule()
    assert plan.ahead == []
    finish_step(s, plan)
    plan = s.schedule()
    assert [(r.planned, r.ahead) for r in plan.decodes] == [(1, 4), (1, 4)]
    assert blocks_of(first)[-1] != blocks_of(second)[-1]
    assert [len(blocks_of(r)) for r in plan.ahead] == [3, 3]
    finish_step(s, plan, accepted=lambda r: 2 if r is first else 0)
    assert [(r.computed, len(r.tokens), len(blocks_of(r))) for r in (first, second)] == [(7, 8, 2), (5, 6, 2)]
    s.add(request(2, 7))
    plan = s.schedule()
    assert [(r.planned, r.ahead) for r in s.running] == [(1, 1), (1, 0), (7, 0)]
    assert plan.ahead == [first]


def test_proposals_take_no_block_from_anybody():
    s = make(blocks=4, size=4, prefix_cache=False)
    s.lookahead = 9
    first, second = request(0, 4, new=9), request(1, 4, new=9)
    s.add(first)
    s.add(second)
    finish_step(s, s.schedule())
    plan = s.schedule()
    assert plan.preempted == []
    assert [r.ahead for r in s.running] == [3, 3]
    first.most_ahead = 2
    finish_step(s, plan)
    assert [r.ahead for r in s.schedule().ahead] == [2, 2]


def test_what_was_not_accepted_is_never_published():
    s = make(size=4)
    s.lookahead = 6
    a = request(0, [1, 2, 3], new=20)
    s.add(a)
    finish_step(s, s.schedule())
    finish_step(s, s.schedule(), accepted=lambda r: 5)
    assert (a.computed, a.published) == (9, 2)
    finish_step(s, s.schedule(), accepted=lambda r: 1)
    assert (a.computed, a.published) == (11, 2)
    follower = request(1, [*a.tokens, 7, 7])
    s.add(follower)
    s.schedule()
    assert follower.cached == 8


def test_the_cost_of_a_step_does_not_grow_with_the_queue():
    def touched(queued: int) -> int:
        s = make(blocks=1000, seqs=4, queued=queued)
        for i in range(queued):
            s.add(request(i, 4, new=100))
        finish_step(s, s.schedule())
        calls = 0
        original = s.pool.match

        def count(*args):
            nonlocal calls
            calls += 1
            return original(*args)

        s.pool.match = count
        s.schedule()
        return calls

    assert touched(10) == touched(2000) == 0
