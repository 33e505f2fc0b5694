"""Low-rank products added to groups of rows: the compiled kernel and the stacked products against the loop."""

import pytest
import torch

from rondo.ops import RANK_MULTIPLE, Pairs, RowGroups, add_low_rank
from rondo.ops.dispatch import use_reference
from rondo.ops.gemm.low_rank import _stacked, read_by_address
from rondo.ops.native.build.build import library

RANKS = (4, 12, 0, 8)
COUNTS = (1, 5, 2, 3)


def problem(inputs: int, width: int, dtype: torch.dtype = torch.float32):
    draw = torch.Generator().manual_seed(inputs)
    members = [
        (
            torch.randn(rank, inputs, generator=draw).to(dtype),
            torch.randn(rank, width, generator=draw).to(dtype),
        )
        if rank
        else None
        for rank in RANKS
    ]
    rows = torch.randperm(20, generator=draw)[: sum(COUNTS)]
    groups = RowGroups(rows, torch.tensor([0, *COUNTS]).cumsum(0))
    x, out = torch.randn(20, inputs, generator=draw), torch.randn(20, width, generator=draw)
    return out, x, members, groups


def table(members) -> torch.Tensor:
    return torch.tensor(
        [[m[0].data_ptr(), m[1].data_ptr(), m[0].shape[0]] if m else [0, 0, 0] for m in members]
    )


@pytest.mark.parametrize(("inputs", "width"), [(64, 96), (7, 33), (256, 1)])
@pytest.mark.parametrize("version", ["native", "stacked"])
def test_versions_agree(inputs: int, width: int, version: str) -> None:
    out, x, members, groups = problem(inputs, width)
    want, before = out.clone(), out.clone()
    with use_reference():
        add_low_rank(want, x, Pairs(members), groups)
    pairs = Pairs(members, table(members))
    if version == "stacked":
        _stacked(out, x, pairs, groups)
    else:
        if library("low_rank") is None:
            pytest.skip("no C compiler: install gcc")
        assert read_by_address(out, x, pairs, groups)
        add_low_rank(out, x, pairs, groups)
    assert torch.allclose(out, want, rtol=1e-5, atol=1e-4)
    others = [row for row in range(20) if row not in groups.rows.tolist()]
    assert torch.equal(out[others], before[others])
    assert not torch.allclose(want[groups.rows[0]], before[groups.rows[0]])


def test_a_row_is_the_same_in_any_company() -> None:
    """Bit for bit, whatever the other groups and however many threads there are."""
    out, x, members, groups = problem(64, 96)
    pairs = Pairs(members, table(members))
    together, alone = out.clone(), out.clone()
    add_low_rank(together, x, pairs, groups)
    for group, rows in enumerate(groups.each):
        own = Pairs(members[group : group + 1], pairs.table[group : group + 1])
        for row in rows:
            add_low_rank(alone, x, own, RowGroups(row[None], torch.tensor([0, 1])))
    if library("low_rank") is not None:
        assert torch.equal(together, alone)
    assert all(rank % RANK_MULTIPLE == 0 for rank in RANKS)


def test_weights_of_two_bytes() -> None:
    out, x, members, groups = problem(64, 96, torch.bfloat16)
    want = out.clone()
    with use_reference():
        add_low_rank(want, x, Pairs(members), groups)
    add_low_rank(out, x, Pairs(members), groups)
    assert torch.allclose(out, want, rtol=2e-2, atol=0.5)
