"""Samples against the sequences that a packed row stands for."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.train.megatron.samples import samples_of

TOKENS = st.lists(st.integers(1, 4), min_size=2, max_size=9)


@st.composite
def rows(draw: st.DrawFn) -> list[PackedRow]:
    """Few different tokens, so that prompts and answers begin alike."""
    items: list[Document | Tree] = [
        Document(ids, [1.0] * len(ids)) for ids in draw(st.lists(TOKENS, max_size=3))
    ]
    for prompt in draw(st.lists(TOKENS, min_size=1, max_size=3)):
        answers = draw(st.lists(TOKENS, min_size=1, max_size=4))
        items.append(Tree(prompt, [Document(ids, [1.0] * len(ids)) for ids in answers]))
    return pack(items, 48)


def sequence_before(row: PackedRow, token: int) -> list[int]:
    """The tokens of the row that the model reads up to `token`, by what a row says of its segments."""
    segment = int(np.searchsorted(row.cu_seqlens, token, side="right")) - 1
    path = list(range(row.cu_seqlens[segment], token + 1))
    while (parent := row.parents[segment]) >= 0:
        first = row.positions[path[0]]
        tokens = range(row.cu_seqlens[parent], row.cu_seqlens[parent + 1])
        path = [t for t in tokens if row.positions[t] < first] + path
        segment = parent
    return path


@settings(max_examples=60)
@given(rows())
def test_a_token_sees_what_it_sees_in_the_row(made: list[PackedRow]) -> None:
    for row in made:
        samples = samples_of(row)
        size = samples.tokens.shape[1]
        assert len(set(samples.places.tolist())) == len(row.tokens)
        assert samples.tokens.reshape(-1)[samples.places].tolist() == row.tokens.tolist()
        assert samples.positions.reshape(-1)[samples.places].tolist() == row.positions.tolist()
        for token in range(len(row.tokens)):
            sample, place = divmod(int(samples.places[token]), size)
            seen = np.flatnonzero(samples.seen[sample, place]) + sample * size
            assert sorted(samples.places[sequence_before(row, token)].tolist()) == seen.tolist()


def test_short_documents_share_the_room_of_the_longest() -> None:
    lengths = [40, 9, 9, 9, 9]
    [row] = pack([Document([1] * (n + 1), [1.0] * (n + 1)) for n in lengths], 80)
    assert samples_of(row).tokens.shape == (2, 40)


def test_what_fills_a_sample_up_is_seen_by_nobody() -> None:
    [row] = pack([Document([1] * (n + 1), [1.0] * (n + 1)) for n in (5, 3)], 16)
    samples = samples_of(row)
    filled = np.setdiff1d(np.arange(samples.tokens.size), samples.places)
    assert len(filled) == 2
    for token in filled:
        sample, place = divmod(int(token), 5)
        assert samples.seen[sample, place].sum() == 1
        assert samples.seen[sample, :, place].sum() == 1
