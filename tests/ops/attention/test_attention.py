"""Packed attention: the fast version against the reference, and both against a loop over single queries."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo.ops import AttentionSpec, packed_attention
from rondo.ops.attention import packed
from rondo.ops.dispatch import use_reference


def spec_of(
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    value_dim: int | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> AttentionSpec:
    value_dim = head_dim if value_dim is None else value_dim
    return AttentionSpec(0, heads, kv_heads, head_dim, value_dim, 0.3, window, softcap, sinks)


def example(spec: AttentionSpec, tokens: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = [
        (spec.num_heads, spec.head_dim),
        (spec.num_kv_heads, spec.head_dim),
        (spec.num_kv_heads, spec.value_dim),
    ]
    return [torch.randn(tokens, *shape, generator=generator).to(dtype) for shape in shapes]


def starts(lengths: list[int]) -> list[int]:
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


def one_query_at_a_time(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, cu: list[int], sinks: Tensor | None
) -> Tensor:
    """The definition in fp64: each query over the keys of its document, from the window's first to itself."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(q.shape[0], spec.num_heads, spec.value_dim, dtype=torch.float64)
    for start, stop in itertools.pairwise(cu):
        for at in range(start, stop):
            first = start if spec.window is None else max(start, at - spec.window + 1)
            for head in range(spec.num_heads):
                kv = head * spec.num_kv_heads // spec.num_heads
                scores = k[first : at + 1, kv] @ q[at, head] * spec.scale
                if spec.softcap:
                    scores = spec.softcap * (scores / spec.softcap).tanh()
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1].double()])
                weights = scores.softmax(0)[: at + 1 - first]
                out[at, head] = weights @ v[first : at + 1, kv]
    return out


SPECS = {
    "grouped": spec_of(),
    "one kv head": spec_of(kv_heads=1),
    "as many kv heads": spec_of(kv_heads=4),
    "window of 1": spec_of(window=1),
    "window of 5": spec_of(window=5),
    "window beyond": spec_of(window=500),
    "narrower values": spec_of(kv_heads=4, value_dim=5),
    "wider values": spec_of(value_dim=12, window=6),
    "soft cap": spec_of(softcap=2.0),
    "sinks": spec_of(sinks=True, window=4),
    "all": spec_of(window=3, softcap=1.5, sinks=True, value_dim=6),
}
LENGTHS = {
    "one": [17],
    "single tokens": [1, 1, 1],
    "even": [6, 6, 6],
    "uneven": [1, 30, 2, 9, 9, 16, 3],
    "with empty ones": [0, 4, 0, 7, 0],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_definition(spec: AttentionSpec, lengths: list[int]) -> None:
    q, k, v = example(spec, sum(lengths))
    sinks = torch.linspace(-1, 1, spec.num_heads) if spec.sinks else None
    expected = one_query_at_a_time(spec, q, k, v, starts(lengths), sinks)
    assert torch.allclose(
        packed_attention(spec, q, k, v, starts(lengths), sinks).double(), expected, atol=1e-5
    )
    with use_reference():
        assert torch.allclose(
            packed_attention(spec, q, k, v, starts(lengths), sinks).double(), expected, atol=1e-5
        )


FAST = {name: spec for name, spec in SPECS.items() if not spec.sinks and spec.softcap is None}


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=40), name=st.sampled_from(sorted(FAST)))
def test_fast_equals_reference(lengths: list[int], name: str) -> None:
    spec, tokens = FAST[name], sum(lengths)
    q, k, v = example(spec, tokens)
    fast = packed_attention(spec, q, k, v, starts(lengths))
    assert fast.shape == (tokens, spec.num_heads, spec.value_dim)
    assert torch.allclose(fast, packed_attention.reference(spec, q, k, v, starts(lengths)), atol=1e-5)


@pytest.mark.parametrize("name", sorted(FAST))
def test_gradients_of_fast_equal_references(name: str) -> None:
    spec, cu = FAST[name], starts([3, 21, 1, 8, 8])
    inputs = [tensor.requires_grad_() for tensor in example(spec, cu[-1])]
    upstream = torch.randn(cu[-1], spec.num_heads, spec.value_dim, generator=torch.Generator().manual_seed(2))
    fast = torch.autograd.grad(packed_attention(spec, *inputs, cu), inputs, upstream)
    reference = torch.autograd.grad(packed_attention.reference(spec, *inputs, cu), inputs, upstream)
    for ours, expected in zip(fast, reference, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("cu", [[0, 0, 12], [0, 5, 5, 12], [0, 12, 12], [0, 0, 0, 12]], ids=str)
def test_documents_of_no_tokens(cu: list[int]) -> None:
    spec = FAST["grouped"]
    inputs = [tensor.requires_grad_() for tensor in example(spec, 12)]
    found = packed_attention(spec, *inputs, cu)
    whole = packed_attention(spec, *inputs, list(dict.fromkeys(cu)))
    assert torch.equal(found, whole)
    upstream = torch.randn_like(found)
    for mine, theirs in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (found, whole)), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("cu", [[0, 5], [0, 11], [0, 13]], ids=str)
def test_documents_that_are_not_all_of_the_tokens_are_not_read_beyond_them(cu: list[int]) -> None:
    spec = FAST["grouped"]
    q, k, v = example(spec, 12)
    try:
        found = packed_attention(spec, q, k, v, cu)
    except (IndexError, RuntimeError):
        return
    alone = packed_attention(spec, *(x[: cu[-1]] for x in (q, k, v)), [0, cu[-1]])
    torch.testing.assert_close(found[: cu[-1]], alone, rtol=1e-4, atol=1e-5)


def test_many_documents() -> None:
    spec = spec_of()
    lengths = torch.randint(1, 50, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    q, k, v = example(spec, sum(lengths))
    fast = packed_attention(spec, q, k, v, starts(lengths))
    assert torch.allclose(fast, packed_attention.reference(spec, q, k, v, starts(lengths)), atol=1e-5)


def test_half_precision() -> None:
    spec, lengths = spec_of(), [5, 40, 12]
    q, k, v = example(spec, sum(lengths), torch.bfloat16)
    expected = one_query_at_a_time(spec, q, k, v, starts(lengths), None)
    for out in (
        packed_attention(spec, q, k, v, starts(lengths)),
        packed_attention.reference(spec, q, k, v, starts(lengths)),
    ):
        assert out.dtype == torch.bfloat16
        assert torch.allclose(out.double(), expected, atol=2e-2)


@given(lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=200))
def test_groups_hold_every_document_once_and_pad_little(lengths: list[int]) -> None:
    cu = starts(lengths)
    groups = packed.group_documents(cu)
    documents = sorted(zip(cu[:-1], lengths, strict=True))
    assert (
        sorted((start, n) for group in groups for start, n in zip(group.starts, group.lengths, strict=True))
        == documents
    )
    for group in groups:
        padded, real = group.longest * len(group.starts), sum(group.lengths)
        assert padded <= packed.MAX_PADDING * real + 64
    # A group closes when the next document is longer by a factor, which bounds how many there are.
    longest = max(lengths)
    assert len(groups) <= 3 + math.log(max(longest, 1), 1.09)


@pytest.mark.parametrize("name", ["soft cap", "sinks", "all"])
def test_what_the_fused_attention_cannot_do_goes_to_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> Tensor:
        raise AssertionError("the fused attention was called")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    spec = SPECS[name]
    sinks = torch.zeros(spec.num_heads) if spec.sinks else None
    packed_attention(spec, *example(spec, 6), [0, 6], sinks)


def test_mask_aligns_the_last_query_with_the_last_key() -> None:
    mask = packed.causal_mask(2, 5, 3, torch.device("cpu"))
    assert mask.int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
