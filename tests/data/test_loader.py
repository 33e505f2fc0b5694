import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.base.errors import StorageError
from rondo.data.batching.datasets import InMemory
from rondo.data.batching.loader import Batch, DataRank, Loader
from rondo.data.batching.packing import Document, PackedRow, pack
from rondo.data.batching.prefetch import Prefetch
from rondo.data.batching.sampler import Position

documents = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=12).filter(
    lambda found: any(len(tokens) > 1 for tokens in found)
)


def loader(
    tokens: list[list[int]],
    rank: DataRank | None = None,
    step: int = 40,
    longest: int | None = 10,
    micro: int = 24,
) -> Loader:
    data = InMemory(Document(ids, [1.0] * len(ids)) for ids in tokens)
    return Loader(
        [data], seed=3, tokens_per_step=step, tokens_per_microbatch=micro, longest=longest, rank=rank
    )


def batches(load: Loader, count: int) -> list[Batch]:
    found, position = list[Batch](), Position()
    for _ in range(count):
        found.append(load(position))
        position = found[-1].position
    return found


def segments(rows: list[PackedRow]) -> list[tuple[int, ...]]:
    return [
        tuple(row.tokens[start:stop].tolist())
        for row in rows
        for start, stop in zip(row.cu_seqlens, row.cu_seqlens[1:], strict=False)
    ]


def learned(rows: list[PackedRow]) -> list[tuple[int, ...]]:
    """The documents of some rows, each as its inputs and its last target."""
    found = []
    for row in rows:
        for start, stop in zip(row.cu_seqlens, row.cu_seqlens[1:], strict=False):
            assert row.positions[start:stop].tolist() == list(range(stop - start))
            found.append((*row.tokens[start:stop].tolist(), int(row.targets[stop - 1])))
    return sorted(found)


@settings(max_examples=40)
@given(documents, st.integers(1, 5), st.sampled_from([20, 24, 400]))
def test_any_number_of_ranks_and_any_microbatch_learn_the_same_step_by_step(
    tokens: list[list[int]], world: int, micro: int
) -> None:
    alone = batches(loader(tokens), 4)
    together = [batches(loader(tokens, DataRank(number, world), micro=micro), 4) for number in range(world)]
    for step, batch in enumerate(alone):
        rows = [row for rank in together for row in rank[step].rows]
        assert learned(rows) == learned(batch.rows)
        assert all(rank[step].valid == batch.valid == sum(row.valid for row in rows) for rank in together)
        assert all(rank[step].position == batch.position for rank in together)
        assert all(len(row.tokens) <= micro for row in rows)


@settings(max_examples=40)
@given(documents, st.integers(1, 5))
def test_rows_are_those_that_packing_gives(tokens: list[list[int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = [Document(ids, rng.integers(0, 2, len(ids)).tolist()) for ids in tokens if len(ids) > 1]
    epoch = sum(len(document.tokens) - 1 for document in whole)
    load = Loader([InMemory(whole)], seed=0, tokens_per_step=epoch, tokens_per_microbatch=24, longest=None)
    batch, rows = load(Position()), pack(whole, 24)
    assert batch.valid == sum(row.valid for row in rows) == sum(row.valid for row in batch.rows)
    assert sorted(segments(batch.rows)) == sorted(segments(rows))
    assert sum(row.weights.sum() for row in batch.rows) == sum(row.weights.sum() for row in rows)


def test_weights_stay_with_their_tokens() -> None:
    documents = [Document([5, 6, 7, 8], [0.0, 0.0, 2.0, 3.0]), Document([9], [1.0])]
    load = Loader([InMemory(documents)], seed=0, tokens_per_step=3, tokens_per_microbatch=8, longest=None)
    batch = load(Position())
    (row,) = batch.rows
    assert (row.where.tolist(), row.targets.tolist(), row.weights.tolist()) == ([1, 2], [7, 8], [2.0, 3.0])
    assert (batch.valid, batch.unfilled, batch.epochs) == (2, 0.0, 1.0)


def test_prefetched_batches_are_the_same_from_wherever_one_starts() -> None:
    tokens = [list(range(1, 2 + n % 9)) for n in range(40)]
    plain = batches(loader(tokens), 6)
    with Prefetch(loader(tokens), 2) as fetched:
        found = [fetched(position) for position in (Position(), *(b.position for b in plain[:5]))]
        assert [learned(b.rows) for b in found] == [learned(b.rows) for b in plain]
        assert learned(fetched(plain[2].position).rows) == learned(plain[3].rows)
    assert not [thread for thread in threading.enumerate() if thread.name == "rondo-prefetch"]


def test_what_fails_in_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    good = loader([[1, 2, 3]])

    def failing(position: Position) -> Batch:
        if position.drawn:
            raise StorageError("the disk is gone")
        return good(position)

    with Prefetch(failing, 2) as fetched:
        first = fetched(Position())
        with pytest.raises(StorageError, match="the disk is gone"):
            fetched(first.position)
