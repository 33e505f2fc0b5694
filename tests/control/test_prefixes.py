"""Prefixes that engines report, and prefixes of requests under way."""

from hypothesis import given
from hypothesis import strategies as st

from rondo.control.config import RouterConfig
from rondo.control.routing.prefixes import PrefixIndex
from rondo.control.routing.router import Instance, Router

PROMPT = [1, 2, 3]


def index_of(count: int = 2) -> tuple[PrefixIndex, list[int]]:
    index = PrefixIndex(100)
    return index, [index.new_engine() for _ in range(count)]


def test_reports_replace_the_history_and_follow_evictions() -> None:
    index, (first, second) = index_of()
    index.add(PROMPT, first)
    index.report(first, [1, 2], [], whole=True)
    assert index.exact(first)
    assert index.lengths(PROMPT, first | second) == {first: 2}
    index.report(first, [3], [], whole=False)
    index.report(first, [], [2], whole=False)
    assert index.lengths(PROMPT, first) == {first: 1}
    index.report(first, [9], [], whole=True)
    assert index.lengths(PROMPT, first) == {}
    assert index.of(first) == 1


def test_changes_without_a_snapshot_are_ignored() -> None:
    index, (first, _) = index_of()
    index.report(first, [1], [], whole=False)
    assert not index.exact(first)
    assert index.lengths(PROMPT, first) == {}


def test_requests_under_way_count_until_they_have_ended_and_the_engine_has_reported() -> None:
    index, (first, _) = index_of()
    index.report(first, [], [], whole=True)
    index.add(PROMPT, first)
    index.report(first, [], [], whole=False)
    index.report(first, [1], [], whole=False)
    assert index.lengths(PROMPT, first) == {first: 3}
    index.end(PROMPT, first)
    index.report(first, [], [], whole=False)
    assert index.lengths(PROMPT, first) == {first: 3}
    index.report(first, [], [], whole=False)
    assert index.lengths(PROMPT, first) == {first: 1}
    index.report(first, [], [1], whole=False)
    assert (index.lengths(PROMPT, first), index.of(first), index._engines) == ({}, 0, {})


def test_a_snapshot_keeps_the_ends_of_requests() -> None:
    index, (first, _) = index_of()
    index.report(first, [], [], whole=True)
    index.add(PROMPT, first)
    index.end(PROMPT, first)
    for _ in range(2):
        index.report(first, [], [], whole=True)
    assert (index.lengths(PROMPT, first), index.of(first), index._engines) == ({}, 0, {})


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "end", "store", "drop", "whole", "clear"]),
        st.integers(0, 1),
        st.lists(st.integers(0, 5), max_size=4, unique=True),
    ),
    max_size=60,
)


@given(steps)
def test_bits_and_memories_agree(given_steps: list[tuple[str, int, list[int]]]) -> None:
    index, bits = index_of()
    for action, engine, pieces in given_steps:
        bit = bits[engine]
        if action == "add":
            index.add(pieces, bit)
        elif action == "end":
            index.end(pieces, bit)
        elif action == "clear":
            index.clear(bit)
        else:
            stored, dropped = ([], pieces) if action == "drop" else (pieces, [])
            index.report(bit, stored, dropped, whole=action == "whole")
        for each in bits:
            memory = index._memory[each]
            marked = {piece for piece, known in index._engines.items() if known & each}
            assert marked == set(memory.held) | set(memory.expected)
            assert not set(memory.held) & set(memory.expected)


def test_an_engine_without_a_prefix_any_more_loses_its_draw() -> None:
    engines = [Instance(f"http://{i}", models=frozenset({"m"})) for i in range(2)]
    router = Router(engines, RouterConfig(piece=10, decode_factor=1.0))
    prompt = b"p" * 100
    first = router.choose("m", prompt)
    router.prefixes.report(first.instance.bit, list(first.pieces), [], whole=True)
    router.ended(first, well=True)
    again = router.choose("m", prompt)
    assert (again.instance, again.known) == (first.instance, 100)
    router.ended(again, well=True)
    router.prefixes.report(first.instance.bit, [], list(first.pieces), whole=False)
    other = router.choose("m", prompt)
    assert (other.instance is first.instance, other.known) == (False, 0)
