"""Each collective, and its way back, beside the same sums in one process."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor.debug import CommDebugMode

from rondo.parallel.collectives import (
    all_to_all,
    arrived,
    copy_to,
    gather_equal,
    gather_rows,
    scatter_rows,
    start_passing,
    sum_over,
)
from support.ranks import ThreadRanks

SIZE, ROWS = 3, 6


def given(rank: int, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(rank))


def run(
    ranks: ThreadRanks, work: Callable[[Tensor, ProcessGroup], Tensor], rows: int = ROWS
) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Outputs and gradients of the ranks, where each goes on with weights of its own, and how many collectives ran."""

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor, int]:
        x = given(group.rank(), rows).requires_grad_()
        with CommDebugMode() as mode:
            out = work(x, group)
            (out * weights(group.rank(), out)).sum().backward()
        assert x.grad is not None
        return out.detach(), x.grad, mode.get_total_counts()

    outputs, gradients, counts = zip(*ranks.run_in_group(SIZE, rank))
    return list(outputs), list(gradients), list(counts)


def weights(rank: int, like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(100 + rank))


INPUTS = [given(rank) for rank in range(SIZE)]


def test_gathered_rows(ranks: ThreadRanks) -> None:
    outputs, gradients, counts = run(ranks, gather_rows)
    whole = torch.cat(INPUTS)
    summed = sum(weights(rank, whole) for rank in range(SIZE))
    assert isinstance(summed, Tensor)
    for rank in range(SIZE):
        assert torch.equal(outputs[rank], whole)
        torch.testing.assert_close(gradients[rank], summed[rank * ROWS : (rank + 1) * ROWS])
    assert counts == [2] * SIZE


def test_scattered_rows(ranks: ThreadRanks) -> None:
    outputs, gradients, counts = run(ranks, scatter_rows)
    part = ROWS // SIZE
    whole = torch.stack(INPUTS).sum(0)
    back = torch.cat([weights(rank, outputs[rank]) for rank in range(SIZE)])
    for rank in range(SIZE):
        torch.testing.assert_close(outputs[rank], whole[rank * part : (rank + 1) * part])
        assert torch.equal(gradients[rank], back)
    assert counts == [2] * SIZE


@pytest.mark.parametrize("sizes", [[6, 6, 6], [0, 4, 6], [3, 0, 0]])
def test_gathered_where_all_go_on_equally(ranks: ThreadRanks, sizes: list[int]) -> None:
    starts = [sum(sizes[:rank]) for rank in range(SIZE)]
    outputs, gradients, counts = run(
        ranks, lambda x, group: gather_equal(x[: sizes[group.rank()]], group, sizes)
    )
    whole = torch.cat([each[:size] for each, size in zip(INPUTS, sizes)])
    for rank, (start, size) in enumerate(zip(starts, sizes)):
        assert torch.equal(outputs[rank], whole)
        back = weights(rank, whole)[start : start + size]
        assert torch.equal(gradients[rank][:size], back)
        assert not gradients[rank][size:].any()
    assert counts == [1] * SIZE


def test_all_to_all_with_uneven_parts(ranks: ThreadRanks) -> None:
    sent = [[1, 2, 3], [0, 6, 0], [4, 1, 1]]
    received = [[row[rank] for row in sent] for rank in range(SIZE)]
    outputs, gradients, counts = run(
        ranks, lambda x, group: all_to_all(x, group, received[group.rank()], sent[group.rank()])
    )
    parts = [x.split(row) for x, row in zip(INPUTS, sent)]
    backs = [weights(rank, outputs[rank]).split(received[rank]) for rank in range(SIZE)]
    for rank in range(SIZE):
        assert torch.equal(outputs[rank], torch.cat([part[rank] for part in parts]))
        assert torch.equal(gradients[rank], torch.cat([back[rank] for back in backs]))
    assert counts == [2] * SIZE


def test_sums_and_copies(ranks: ThreadRanks) -> None:
    outputs, gradients, counts = run(ranks, sum_over)
    for rank in range(SIZE):
        torch.testing.assert_close(outputs[rank], torch.stack(INPUTS).sum(0))
        assert torch.equal(gradients[rank], weights(rank, INPUTS[0]))
    assert counts == [1] * SIZE

    outputs, gradients, counts = run(ranks, copy_to)
    for rank in range(SIZE):
        assert torch.equal(outputs[rank], INPUTS[rank])
        torch.testing.assert_close(
            gradients[rank], torch.stack([weights(each, INPUTS[0]) for each in range(SIZE)]).sum(0)
        )
    assert counts == [1] * SIZE


def test_passing_on(ranks: ThreadRanks) -> None:
    passed = ranks.run_in_group(SIZE, lambda group: arrived(start_passing(given(group.rank()), group)))
    for rank in range(SIZE):
        assert torch.equal(passed[rank], INPUTS[rank - 1])


def test_one_rank_communicates_nothing(ranks: ThreadRanks) -> None:
    def rank(group: ProcessGroup) -> int:
        x = given(0)
        with CommDebugMode() as mode:
            for collective in (gather_rows, scatter_rows, gather_equal, sum_over, copy_to):
                assert collective(x, group) is x
            assert all_to_all(x, group, [ROWS], [ROWS]) is x
        return mode.get_total_counts()

    assert ranks.run_in_group(1, rank) == [0]


def test_rows_that_do_not_divide_are_an_error(ranks: ThreadRanks) -> None:
    def rank(group: ProcessGroup) -> None:
        with pytest.raises(ValueError, match="4 rows do not divide among 3 ranks"):
            scatter_rows(given(0, 4), group)

    ranks.run_in_group(SIZE, rank)
