"""Rows of keys and values in every type they may be kept in."""

import pytest
import torch

from rondo.ops.attention.pages import LARGEST, Pages, decode, encode, kept_as, row_bytes

ROUNDING = {
    torch.float32: 0.0,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
    torch.int8: 0.5 / 127,
    torch.float8_e4m3fn: 2**-4,
}
"""The largest error of a number, as a share of its row's largest: half a step of the type."""
TYPES = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


def empty(dtype, dim=16) -> Pages:
    scales = torch.zeros(5, 4, 2) if dtype in LARGEST else None
    return Pages(dtype, torch.zeros(5, 4, 2, dim, dtype=kept_as(dtype)), scales)


def random_rows(count=8, dim=16):
    sizes = 10.0 ** torch.linspace(-30, 30, count)[:, None, None]
    return torch.randn(count, 2, dim, generator=torch.Generator().manual_seed(0)) * sizes


@TYPES
def test_rows_come_back_within_half_a_step(dtype):
    rows = random_rows() if dtype != torch.float16 else random_rows().clamp(-6e4, 6e4)
    pages, slots = empty(dtype), torch.tensor([4, 5, 6, 7, 16, 17, 18, 19])
    kept = pages.write(slots, rows)
    read = pages.gather(slots[None], torch.float32)
    assert torch.equal(read[0], kept)
    error = (kept - rows).abs().amax(-1) / rows.abs().amax(-1)
    assert (error <= ROUNDING[dtype] * 1.001).logical_or(rows.abs().amax(-1) < 1e-4).all()
    if dtype in LARGEST:
        # Whatever a row's size: a scale of its own keeps its steps small.
        assert (error <= ROUNDING[dtype] * 1.001).all()
    assert pages.gather(torch.tensor([[0, 1, 9], [2, 3, 8]]), torch.bfloat16).shape == (2, 3, 2, 16)
    assert not pages.gather(torch.tensor([[*range(4), *range(8, 16)]]), torch.float32).any()


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_what_was_kept_is_kept_again_as_it_is(dtype):
    """Otherwise blocks that are computed from stored ones would drift."""
    kept = decode(*encode(random_rows(), dtype), dtype, torch.float32)
    again = decode(*encode(kept, dtype), dtype, torch.float32)
    assert torch.allclose(again, kept, rtol=1e-6, atol=0)


@TYPES
def test_cleaning_takes_out_what_is_not_finite_and_nothing_else(dtype):
    pages = empty(dtype)
    rows = torch.randn(4, 2, 16)
    rows[0, 0, 3], rows[1, 1, 0], rows[2, 0, 5] = torch.nan, torch.inf, -torch.inf
    kept = pages.write(torch.arange(8, 12), rows)
    broken = torch.tensor([[True, False], [False, True], [True, False], [False, False]])
    assert torch.equal(~kept.isfinite().all(-1), broken)
    whole = kept[~broken].clone()
    pages.clean(torch.tensor([2, 3]))
    read = pages.gather(torch.arange(8, 12)[None], torch.float32)[0]
    assert read.isfinite().all()
    assert torch.equal(read[~broken], whole)


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_rows_of_nothing_stay_nothing(dtype):
    data, scales = encode(torch.zeros(3, 2, 8), dtype)
    assert not decode(data, scales, dtype, torch.float32).any()
    tiny = torch.full((1, 8), 1e-40)
    assert decode(*encode(tiny, dtype), dtype, torch.float32).isfinite().all()


@TYPES
def test_bytes_of_a_row_are_those_of_its_tensors(dtype):
    held = sum(tensor.numel() * tensor.element_size() for tensor in empty(dtype).tensors)
    assert held == 5 * 4 * 2 * row_bytes(16, dtype)
