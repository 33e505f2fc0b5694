"""Attention in a tree of segments against attention over each whole sequence by the formula."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.ops import AttentionSpec, packed_attention
from rondo.ops.dispatch import use_reference
from rondo.train.learner.shared_prefix import SharedPrefix

SPEC = AttentionSpec(0, 4, 2, 8, 8, 0.3)


def a_tree(source: random.Random) -> tuple[list[int], list[int], list[int]]:
    """(boundaries, parents, positions) of segments, some far longer than what attends together."""
    bounds, parents, positions, paths = [0], [], [], []
    for i in range(source.randint(1, 24)):
        parent = source.randint(-1, i - 1) if source.random() < 0.9 else -1
        reach = paths[parent] if parent >= 0 else 0
        start = source.randint(max(1, reach - 3), reach) if parent >= 0 else 0
        size = source.choice([1, 2, 3, 5, 9, 30, 80])
        bounds.append(bounds[-1] + size)
        parents.append(parent)
        positions.append(start)
        paths.append(start + size)
    return bounds, parents, positions


def whole_sequences(
    spec: AttentionSpec, tree: tuple[list[int], list[int], list[int]], *qkv: torch.Tensor
) -> torch.Tensor:
    bounds, parents, positions = tree
    paths: list[list[int]] = []
    out = []
    for i, (parent, start) in enumerate(zip(parents, positions, strict=True)):
        own = list(range(bounds[i], bounds[i + 1]))
        paths.append((paths[parent] if parent >= 0 else [])[:start] + own)
        with use_reference():
            attended = packed_attention(spec, *(x[paths[i]] for x in qkv), [0, len(paths[i])])
        out.append(attended[-len(own) :])
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 3, 20])
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_token_sees_its_own_sequence(window: int | None, seed: int) -> None:
    spec, tree = replace(SPEC, window=window), a_tree(random.Random(seed))
    generator = torch.Generator().manual_seed(seed)
    qkv = [torch.randn(tree[0][-1], heads, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2)]
    weights = torch.randn(tree[0][-1], 4, 8, generator=generator)
    found, wanted = SharedPrefix(*tree)(spec, *qkv), whole_sequences(spec, tree, *qkv)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    pairs = zip(*(torch.autograd.grad((out * weights).sum(), qkv) for out in (found, wanted)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_lengths_are_those_of_the_longest_continuation() -> None:
    attend = SharedPrefix([0, 4, 6, 9, 10], [-1, 0, 0, 2], [0, 4, 2, 5])
    assert attend.lengths.tolist() == [6] * 4 + [6] * 2 + [6] * 3 + [6]
