"""What ranks' stripes see of one another is, put together, what tokens of the row see."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rondo.parallel.context.meeting import Meeting
from rondo.parallel.context.row_cut import RowCut


@st.composite
def rows(draw: st.DrawFn) -> tuple[RowCut, list[int]]:
    ranks = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(0, 23), max_size=6))
    sizes.append(-sum(sizes) % ranks)
    edges = np.cumsum([0, *sizes]).tolist()
    return RowCut(edges[-1], ranks, striped=True), edges


def row_sees(edges: list[int], window: int | None) -> NDArray[np.bool_]:
    """[query, key] of the row itself."""
    at = np.arange(edges[-1])
    document = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    back = at[:, None] - at
    return (document[:, None] == document) & (back >= 0) & (back < (window or len(at) + 1))


def meeting_sees(meeting: Meeting, window: int | None) -> NDArray[np.bool_]:
    """[query, key] of those that take part."""
    return row_sees(list(meeting.cu_seqlens), meeting.window(window))


@given(rows(), st.none() | st.integers(1, 30))
def test_each_pair_meets_once(row: tuple[RowCut, list[int]], window: int | None) -> None:
    cut, edges = row
    seen = np.zeros((cut.length, cut.length), int)
    for rank in range(cut.ranks):
        for source in range(cut.ranks):
            meeting = Meeting.of(cut, edges, rank, source)
            if meeting.cu_seqlens[-1] == 0 or meeting.window(window) == 0:
                continue
            queries, keys = cut.tokens(rank)[meeting.queries], cut.tokens(source)[meeting.keys]
            seen[np.ix_(queries, keys)] += meeting_sees(meeting, window)
    assert (seen == row_sees(edges, window)).all()


@given(rows())
def test_every_step_is_about_as_much_work_on_each_rank(row: tuple[RowCut, list[int]]) -> None:
    """Apart by no more pairs than a rank has tokens and there are documents."""
    cut, edges = row
    for step in range(cut.ranks):
        meetings = [Meeting.of(cut, edges, rank, (rank - step) % cut.ranks) for rank in range(cut.ranks)]
        pairs = [int(meeting_sees(meeting, None).sum()) for meeting in meetings]
        assert max(pairs) - min(pairs) <= cut.each + len(edges)
