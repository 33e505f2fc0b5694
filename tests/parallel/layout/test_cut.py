"""Where a pipeline cuts a model."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.models.architecture import Gqa
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.cut import CONTEXT, Costs, costs, cut, pieces_of, stage_of
from support.tiny import TINY_MLA, TINY_MOE, tiny_model

COSTS = st.builds(
    Costs,
    layers=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    embed=st.integers(0, 5),
    head=st.integers(0, 40),
)


@given(COSTS, st.data())
def test_all_layers_once_and_the_dearest_piece_is_the_cheapest_possible(
    whole: Costs, data: st.DataObject
) -> None:
    count = len(whole.layers)
    pieces = data.draw(st.integers(1, count))
    found = cut(whole, pieces)
    assert len(found) == pieces
    assert all(found)
    assert [layer for piece in found for layer in piece] == list(range(count))
    least = min(
        _dearest(whole, [range(a, b) for a, b in pairwise([0, *inner, count])])
        for inner in combinations(range(1, count), pieces - 1)
    )
    assert _dearest(whole, found) == least


def _dearest(whole: Costs, pieces: list[range]) -> int:
    each = [sum(whole.layers[i] for i in piece) for piece in pieces]
    each[0] += whole.embed
    each[-1] += whole.head
    return max(each)


def test_equal_layers_are_shared_out_evenly() -> None:
    assert sorted(len(piece) for piece in cut(Costs([1] * 10, 0, 0), 4)) == [2, 2, 3, 3]
    assert [len(piece) for piece in cut(Costs([10] * 8, 0, 30), 2)] == [5, 3]


@pytest.mark.parametrize("changes", [{}, TINY_MOE, TINY_MLA])
def test_costs_are_the_weights_that_a_token_meets_and_its_attention(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    found = costs(model.config)
    assert found.head == model.head.out.weight.numel()
    for layer, cost in zip(model.layers, found.layers, strict=True):
        weights = 0.0
        for name, parameter in layer.named_parameters():
            if ".experts." in name:
                router = layer.mlp.router.spec
                weights += parameter.numel() * router.top_k / router.num_experts
            elif parameter.ndim == 2:
                weights += parameter.numel()
        part = layer.attention.part
        seen = CONTEXT // 2 * part.num_heads * (part.head_dim + part.value_dim)
        assert cost == weights + seen


def test_a_window_is_all_that_attention_sees() -> None:
    layer = tiny_model().config.layers[0]
    assert isinstance(layer.attention, Gqa)
    near = replace(layer, attention=replace(layer.attention, window=16))
    model = replace(tiny_model().config, layers=(layer, near))
    whole, windowed = costs(model).layers
    assert whole - windowed == 2 * layer.attention.num_heads * layer.attention.head_dim * (CONTEXT // 2 - 16)


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        (LayoutConfig(pp=3), [0, 1, 2]),
        (LayoutConfig(pp=2, virtual=3, schedule="interleaved"), [0, 1, 0, 1, 0, 1]),
        (LayoutConfig(pp=3, schedule="zero-bubble"), [0, 1, 2, 2, 1, 0]),
        (LayoutConfig(schedule="zero-bubble"), [0]),
    ],
)
def test_who_has_which_piece(layout: LayoutConfig, stages: list[int]) -> None:
    assert [stage_of(layout, piece) for piece in range(pieces_of(layout))] == stages
