import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.data.sampler import Position, order, take_tokens, take_whole


def test_the_order_is_a_permutation_that_seed_and_epoch_decide() -> None:
    assert sorted(order(50, 3, 0).tolist()) == list(range(50))
    assert order(50, 3, 0).tolist() == order(50, 3, 0).tolist()
    assert len({tuple(order(50, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert order(8, 1, 0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(1, 60), st.integers(1, 16))
def test_pieces_cover_every_token_once_an_epoch(lengths: list[int], budget: int, longest: int) -> None:
    if max(lengths) < 2:
        return
    seen: list[tuple[int, int]] = []
    position = Position()
    while position.epoch == 0 and position.index < len(lengths):
        pieces, position = take_tokens(lengths, 0, position, budget, longest)
        assert sum(p.end - p.begin - 1 for p in pieces) == budget
        assert all(p.end - p.begin - 1 <= longest for p in pieces)
        seen += [(p.document, token) for p in pieces for token in range(p.begin + 1, p.end)]
    whole = [(d, token) for d, length in enumerate(lengths) for token in range(1, length)]
    assert sorted(seen[: len(whole)]) == whole


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(1, 60))
def test_whole_documents_come_in_order_and_resume_where_they_stopped(lengths: list[int], budget: int) -> None:
    position = Position()
    seen: list[int] = []
    for _ in range(5):
        taken, position = take_whole(lengths, 7, position, budget)
        assert taken
        assert len(taken) == 1 or sum(lengths[i] for i in taken) <= budget
        seen += taken
    endless = [int(i) for epoch in range(400) for i in order(len(lengths), 7, epoch)]
    assert seen == endless[: len(seen)]


def test_an_empty_data_set_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        take_tokens([1, 1], 0, Position(), 10, 10)
    with pytest.raises(InvalidRequest, match="empty"):
        take_whole([], 0, Position(), 10)
