import random

from hypothesis import given
from hypothesis import strategies as st

from rondo.engine.speculate.ngram import CANDIDATES, NgramIndex


def by_search(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    end = len(tokens)
    places = [
        place
        for place in range(end - 1, shortest - 1, -1)
        if end > shortest and tokens[place - shortest : place] == tokens[end - shortest :]
    ]
    best, most = 0, 0
    for place in places[:CANDIDATES]:
        alike = max(
            n
            for n in range(shortest, min(longest, place) + 1)
            if tokens[place - n : place] == tokens[end - n :]
        )
        if alike > most:
            best, most = place, alike
    if not best:
        return []
    return [tokens[best + i % (end - best)] for i in range(count)]


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 3), st.integers(1, 6))
def test_it_finds_what_a_search_finds(seed, shortest, more, count):
    rng = random.Random(seed)
    tokens: list[int] = []
    index = NgramIndex(shortest, shortest + more)
    for _ in range(60):
        tokens += [rng.randrange(3) for _ in range(rng.randrange(1, 4))]
        assert index.continuation(tokens, count) == by_search(tokens, shortest, shortest + more, count)


def test_a_period_goes_on_beyond_the_end():
    assert NgramIndex(2, 5).continuation([9, 1, 2, 3, 1, 2], 6) == [3, 1, 2, 3, 1, 2]
    assert NgramIndex(2, 5).continuation([1, 2, 3, 4], 6) == []
    assert NgramIndex(2, 5).continuation([1], 6) == []


def test_the_longer_run_wins_and_then_the_more_recent():
    tokens = [1, 2, 3, 7, 2, 3, 8, 5, 2, 3, 9, 1, 2, 3]
    assert NgramIndex(2, 5).continuation(tokens, 1) == [7]
    assert NgramIndex(2, 2).continuation(tokens, 1) == [9]
