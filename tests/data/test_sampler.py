from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest, StorageError
from rondo.data.batching.sampler import (
    LOOKAHEAD,
    DocumentSampler,
    DocumentSpan,
    DocumentSpans,
    Position,
    Shuffle,
)

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda found: max(found) > 1)


def pieces(*each: list[int], longest: int | None = None) -> list[DocumentSpans]:
    return [DocumentSpans(np.asarray(found), longest) for found in each]


def steps(sampler: DocumentSampler, count: int) -> list[list[DocumentSpan]]:
    found, position = [], Position()
    for _ in range(count):
        taken, position = sampler.take(position)
        found.append(taken)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 1000])
def test_the_order_is_a_permutation_that_seed_and_epoch_decide(count: int) -> None:
    everything = np.arange(count)
    orders = {
        tuple(Shuffle(count, seed, epoch, stream)(everything).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
        for stream in (0, 1)
    }
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert len(orders) == 8 or count < 17


def test_the_order_is_the_same_on_every_machine_and_any_part_of_it_can_be_asked_for() -> None:
    shuffle = Shuffle(12, 3, 0)
    assert shuffle(np.arange(12)).tolist() == [1, 8, 0, 4, 11, 7, 3, 9, 10, 6, 2, 5]
    assert shuffle(np.asarray([11, 2])).tolist() == [5, 0]


def test_the_order_has_no_pattern() -> None:
    """Neighbours end up a third of the range apart, as two random numbers do, and every place is as likely."""
    at = Shuffle(10_000, 0, 0)(np.arange(10_000))
    assert abs(np.abs(np.diff(at)).mean() / 10_000 - 1 / 3) < 0.02
    first = Counter(int(Shuffle(4, seed, 0)(np.asarray([0]))[0]) for seed in range(2000))
    assert all(400 < first[place] < 600 for place in range(4))


@settings(max_examples=40)
@given(lengths, st.integers(1, 16), st.integers(1, 60))
def test_every_token_comes_once_an_epoch(found: list[int], longest: int, budget: int) -> None:
    (cut,) = pieces(found, longest=longest)
    taken = [piece for step in steps(DocumentSampler([cut], [1.0], 0, budget), 60) for piece in step]
    whole = sorted((document, token) for document, length in enumerate(found) for token in range(1, length))
    assert all(1 <= piece.size <= longest for piece in taken)
    assert all(piece.size == longest or piece.end == found[piece.document] for piece in taken), (
        "a document is cut only where it is longer than the context"
    )
    seen = Counter((piece.document, token) for piece in taken for token in range(piece.begin + 1, piece.end))
    behind = len(cut) + LOOKAHEAD  # pieces of the next epoch may have come before the last ones of this
    if len(taken) >= behind + len(cut):
        assert all(seen[token] >= 1 for token in whole)
    assert max(seen.values()) - min((seen[token] for token in whole), default=0) <= 2 + LOOKAHEAD // len(cut)


@settings(max_examples=40)
@given(lengths, st.integers(1, 30))
def test_an_epoch_is_a_permutation_however_steps_look_ahead(found: list[int], budget: int) -> None:
    """What is done is all pieces up to the position, and those it says are ahead: none twice, none left out."""
    (whole,) = pieces(found)
    sampler, position, taken = DocumentSampler([whole], [1.0], 0, budget), Position(), Counter[int]()
    for _ in range(5):
        step, position = sampler.take(position)
        taken.update(piece.document for piece in step)
    (drawn,) = position.drawn
    epochs = 1 + (drawn + max(position.ahead, default=0)) // len(whole)
    shuffles = [Shuffle(len(whole), 0, epoch)(np.arange(len(whole))) for epoch in range(epochs)]
    endless = [piece.document for shuffled in shuffles for piece in whole.at(shuffled)]
    assert taken == Counter(endless[:drawn] + [endless[drawn + i] for i in position.ahead])


@settings(max_examples=25)
@given(lengths, lengths, st.integers(1, 60), st.integers(1, 11))
def test_a_sampler_goes_on_from_any_position(a: list[int], b: list[int], budget: int, stop: int) -> None:
    def fresh() -> DocumentSampler:
        return DocumentSampler(pieces(a, b, longest=9), [1.0, 2.5], 7, budget)

    position = Position()
    for _ in range(stop):
        _, position = fresh().take(position)
    resumed, _ = fresh().take(Position.of({"drawn": [*position.drawn], **rest(position)}))
    assert steps(fresh(), stop + 1)[stop] == resumed


def rest(position: Position) -> dict[str, list[int]]:
    return {"tokens": [*position.tokens], "ahead": [*position.ahead]}


def test_a_step_is_filled_with_what_fits_best_and_the_rest_comes_next() -> None:
    """Of lengths 9, 8, 7, ... a step of 14 takes 9 and then the 5 that fits, and the next begins at 8."""

    class InOrder(DocumentSpans):
        def at(self, indices: np.ndarray, source: int = 0) -> list[DocumentSpan]:
            return super().at(np.arange(len(indices)), source)

    sizes = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    found = steps(DocumentSampler([InOrder(np.asarray(sizes) + 1)], [1.0], 0, 14), 3)
    assert [[piece.size for piece in step] for step in found] == [[9, 5], [8, 6], [7, 4, 3]]


def test_what_is_left_of_a_step_is_small() -> None:
    rng = np.random.default_rng(0)
    documents = rng.lognormal(6, 1, 5000).astype(int) + 2  # a median of 400 tokens, a tenth above 1,450
    cut = DocumentSpans(documents, 2048)
    for budget, most in ((2048, 0.03), (16384, 0.002)):
        found = steps(DocumentSampler([cut], [1.0], 0, budget), 100)
        assert 1 - sum(piece.size for step in found for piece in step) / (100 * budget) < most


def test_sources_share_the_tokens_by_their_weights() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, 50, 100), rng.integers(200, 500, 30)
    sampler = DocumentSampler([DocumentSpans(a), DocumentSpans(b)], [0.7, 0.3], 0, 2000)
    tokens = [0, 0]
    for step in steps(sampler, 50):
        for piece in step:
            tokens[piece.source] += piece.size
    assert tokens[0] / sum(tokens) == pytest.approx(0.7, abs=0.01)


def test_bad_data_and_positions_are_errors() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        DocumentSampler(pieces([1, 0, 1]), [1.0], 0, 10)
    with pytest.raises(InvalidRequest, match="empty"):
        DocumentSampler(pieces([]), [1.0], 0, 10)
    with pytest.raises(StorageError, match="another version"):
        Position.of({"epoch": 0, "index": 3, "offset": 0})
    with pytest.raises(StorageError, match="2 sources"):
        DocumentSampler(pieces([5]), [1.0], 0, 10).take(Position((1, 1), (4, 4)))
