"""Order, fairness and bounds of the queue of requests that wait for an engine."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.control.routing.waiting import QueueFull, Ticket, WaitQueue

MODELS = ["m", "n"]


def ticket(owner: str = "a", band: int = 1, work: float = 1.0, size: int = 1, model: str = "m") -> Ticket:
    return Ticket(model, band, owner, work, size)


def queue_of(*tickets: Ticket, most: int = 100, most_bytes: int = 1000) -> WaitQueue:
    queue = WaitQueue(3, most, most_bytes)
    for each in tickets:
        assert queue.add(each) == []
    return queue


def drained(queue: WaitQueue, models: list[str] = MODELS) -> list[Ticket]:
    taken = []
    while (next_one := queue.take(models)) is not None:
        taken.append(next_one)
    return taken


def test_higher_bands_are_first_and_equals_are_served_in_order() -> None:
    flex, first, second, urgent = ticket(band=2), ticket(), ticket(), ticket(band=0)
    assert drained(queue_of(flex, first, second, urgent)) == [urgent, first, second, flex]


def test_owners_share_by_work_and_not_by_number_of_requests() -> None:
    heavy = [ticket("heavy", work=10.0) for _ in range(10)]
    light = [ticket("light", work=1.0) for _ in range(50)]
    order = drained(queue_of(*heavy, *light))
    served = Counter(each.owner for each in order[:33])
    assert served["heavy"] in (3, 4)
    assert served["light"] in (29, 30)


def test_a_late_owner_is_served_next_and_earns_nothing_by_its_absence() -> None:
    queue = queue_of(*(ticket("early") for _ in range(20)))
    for _ in range(10):
        queue.take(MODELS)
    late = [ticket("late") for _ in range(10)]
    for each in late:
        queue.add(each)
    assert [each.owner for each in drained(queue)[:6]] in (
        ["early", "late"] * 3,
        ["late", "early"] * 3,
        ["late", "early", "early", "late", "early", "late"],
        ["early", "late", "late", "early", "late", "early"],
    )


def test_only_models_with_room_are_served() -> None:
    other, own = ticket(model="n", band=0), ticket(model="m", band=2)
    queue = queue_of(other, own)
    assert queue.take(["m"]) is own
    assert queue.take(["m"]) is None
    assert queue.models == ["n"]


def test_a_request_that_is_put_back_is_next_of_its_owner_and_charged_once() -> None:
    first, second, other = ticket("a", work=5), ticket("a", work=5), ticket("b", work=5)
    queue = queue_of(first, second, other)
    assert queue.take(MODELS) is first
    queue.put_back(first)
    assert drained(queue) == [other, first, second]


def test_a_full_queue_refuses_equals_and_replaces_lower_bands_newest_first() -> None:
    old, new = ticket(band=2), ticket(band=2)
    queue = queue_of(old, new, most=2)
    with pytest.raises(QueueFull):
        queue.add(ticket(band=2))
    higher = ticket(band=1)
    assert queue.add(higher) == [new]
    assert queue.add(ticket("b", band=0)) == [old]
    with pytest.raises(QueueFull):
        queue.add(ticket("b", band=1))


def test_in_a_full_queue_an_owner_with_few_requests_replaces_one_of_the_owner_with_most() -> None:
    many = [ticket("many") for _ in range(4)]
    queue = queue_of(*many, most=4)
    assert queue.add(ticket("few")) == [many[3]]
    assert queue.add(ticket("few")) == [many[2]]
    with pytest.raises(QueueFull):
        queue.add(ticket("few"))


def test_bytes_are_bounded_and_a_refusal_changes_nothing() -> None:
    small = [ticket(band=2, size=40) for _ in range(2)]
    queue = queue_of(*small, most_bytes=100)
    with pytest.raises(QueueFull):
        queue.add(ticket(band=1, size=101))
    assert (len(queue), queue.size) == (2, 80)
    assert queue.add(ticket(band=1, size=90)) == [small[1], small[0]]
    with pytest.raises(QueueFull):
        queue_of(most=0).add(ticket())


actions = st.one_of(
    st.tuples(
        st.just("add"),
        st.builds(
            ticket,
            st.sampled_from("abc"),
            st.integers(0, 2),
            st.integers(1, 9).map(float),
            st.integers(0, 5),
            st.sampled_from(MODELS),
        ),
    ),
    st.tuples(st.just("take"), st.sampled_from([["m"], ["n"], MODELS])),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("back"), st.integers(0, 30)),
)


@given(st.lists(actions, max_size=60))
def test_each_request_is_in_one_place_and_the_best_band_is_served(steps: list[tuple[str, object]]) -> None:
    """Against a plain list of the waiting requests."""
    queue, waiting, taken = WaitQueue(3, 8, 20), list[Ticket](), list[Ticket]()
    for action, value in steps:
        if action == "add":
            assert isinstance(value, Ticket)
            if value in waiting or value in taken:
                continue
            try:
                displaced = queue.add(value)
            except QueueFull:
                continue
            for each in displaced:
                assert each.band >= value.band
                waiting.remove(each)
            waiting.append(value)
        elif action == "take":
            found = queue.take(value)  # type: ignore[arg-type]
            may = [each for each in waiting if each.model in value]  # type: ignore[operator]
            assert (found is None) == (not may)
            if found is not None:
                assert found.band == min(each.band for each in may)
                place = (found.owner, found.band, found.model)
                assert found is next(each for each in may if (each.owner, each.band, each.model) == place)
                waiting.remove(found)
                taken.append(found)
        elif action == "remove" and waiting:
            assert isinstance(value, int)
            gone = waiting.pop(value % len(waiting))
            assert queue.remove(gone)
            assert not queue.remove(gone)
        elif action == "back" and taken:
            assert isinstance(value, int)
            back = taken.pop(value % len(taken))
            queue.put_back(back)
            waiting.insert(0, back)
        assert len(queue) == len(waiting)
        assert queue.size == sum(each.size for each in waiting)
        assert sorted(queue.models) == sorted({each.model for each in waiting})
        assert queue.lengths == [sum(each.band == band for each in waiting) for band in range(3)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20)), min_size=2, max_size=80))
def test_two_backlogged_owners_never_drift_apart_by_more_than_two_requests(
    requests: list[tuple[str, int]],
) -> None:
    queue = queue_of(*(ticket(owner, work=float(work)) for owner, work in requests), most_bytes=10**6)
    left = Counter(owner for owner, _ in requests)
    served = Counter[str]()
    largest = max(work for _, work in requests)
    while all(left[owner] for owner in "ab"):
        found = queue.take(MODELS)
        assert found is not None
        served[found.owner] += int(found.work)
        left[found.owner] -= 1
        assert abs(served["a"] - served["b"]) <= 2 * largest
