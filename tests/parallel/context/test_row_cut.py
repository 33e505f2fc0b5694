"""Tokens and predictions among ranks: each exactly once, and in an order from which the row comes back."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import ConfigError
from rondo.parallel.context.row_cut import RowCut


@st.composite
def cuts(draw: st.DrawFn) -> RowCut:
    ranks = draw(st.integers(1, 6))
    return RowCut(ranks * draw(st.integers(0, 9)), ranks, draw(st.booleans()))


@given(cuts())
def test_each_token_is_one_ranks(cut: RowCut) -> None:
    held = [cut.tokens(rank) for rank in range(cut.ranks)]
    assert {len(tokens) for tokens in held} == {cut.each}
    assert sorted(np.concatenate(held)) == list(range(cut.length))
    for rank, tokens in enumerate(held):
        assert (np.diff(tokens) > 0).all()
        assert (cut.owners(tokens) == rank).all()
        assert (cut.places(tokens) == np.arange(cut.each)).all()


@given(cuts(), st.data())
def test_predictions_are_dealt_out_and_come_back_in_order(cut: RowCut, data: st.DataObject) -> None:
    tokens = st.integers(0, max(cut.length - 1, 0))
    where = np.array(data.draw(st.lists(tokens, max_size=20 if cut.length else 0)), np.int64)
    deal = cut.deal(where)
    dealt = []
    for rank in range(cut.ranks):
        own = deal.own(rank)
        assert len(own) == deal.sizes[rank]
        assert (np.diff(own) > 0).all()
        assert (cut.tokens(rank)[deal.read(rank)] == where[own]).all()
        dealt.append(where[own])
    assert (np.concatenate(dealt)[deal.back] == where).all()


@given(st.integers(2, 6), st.data())
def test_stripes_are_equal_work(ranks: int, data: st.DataObject) -> None:
    """Pairs of a query and a key that it sees differ by no more than a document's queries, whatever the documents."""
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    sizes.append(-sum(sizes) % ranks)
    starts = np.cumsum([0, *sizes])
    cut = RowCut(int(starts[-1]), ranks, striped=True)
    seen = np.arange(cut.length) - np.repeat(starts[:-1], sizes) + 1
    work = [int(seen[cut.tokens(rank)].sum()) for rank in range(ranks)]
    assert max(work) - min(work) <= sum(stop - start for start, stop in pairwise(starts.tolist()))


def test_a_row_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="pad it to a multiple of 4"):
        RowCut(10, 4)
