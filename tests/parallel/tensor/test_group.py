import threading

import pytest
import torch


def test_sums_are_the_same_bits_on_every_rank(ranks):
    def work(group):
        generator = torch.Generator().manual_seed(group.rank)
        return group.add(torch.randn(7, 33, generator=generator)), group.add(torch.empty(0, 5))

    results = ranks.run(3, work)
    expected = sum(torch.randn(7, 33, generator=torch.Generator().manual_seed(rank)) for rank in range(3))
    for total, empty in results:
        assert torch.equal(total, results[0][0])
        assert torch.allclose(total, expected, atol=1e-6)
        assert empty.shape == (0, 5)


def test_parts_are_gathered_in_order_and_the_last_may_be_smaller(ranks):
    whole = torch.arange(2 * 10.0).view(2, 10)
    results = ranks.run(3, lambda group: group.gather(whole[:, 4 * group.rank : 4 * group.rank + 4], 4, 10))
    assert all(torch.equal(result, whole) for result in results)


def test_the_least_number_counts(ranks):
    assert ranks.run(3, lambda group: group.least([70, 30, 50][group.rank])) == [30, 30, 30]


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_was_said(ranks):
    told = threading.Event()

    def work(group):
        if group.rank == 1:
            assert told.wait(60)
            return
        with pytest.raises(RuntimeError, match="Timed out"):
            group.add(torch.ones(4))
        told.set()

    ranks.run(2, work, seconds=2)
