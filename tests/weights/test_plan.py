"""Regions, plans and predictions: pure arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import ConfigError
from rondo.weights.checksum import bytes_of
from rondo.weights.manifest import layout_from, layout_of
from rondo.weights.plan.boxes import intersect, runs, slices, split_rows, subtract, volume, whole
from rondo.weights.plan.layouts import RankLayout, mixture, total_bytes
from rondo.weights.plan.planner import make_plan, share_out
from rondo.weights.plan.simulate import Links, plan_copy, simulate

SHAPES = {
    "model.embed_tokens.weight": ((50, 8), 2),
    "model.layers.0.self_attn.q_proj.weight": ((16, 8), 2),
    "model.layers.0.self_attn.o_proj.weight": ((8, 16), 2),
    "model.layers.0.mlp.down_proj.weight": ((8, 24), 2),
    "model.layers.1.mlp.gate_proj.weight": ((24, 8), 2),
    "model.layers.1.input_layernorm.weight": ((8,), 4),
    "model.norm.weight": ((8,), 4),
}


@st.composite
def boxes(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    box = [sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    return tuple(shape), tuple(map(tuple, box))


@given(boxes())
def test_runs_are_the_bytes_of_a_region(case):
    shape, box = case
    tensor = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    data = np.concatenate([np.zeros(7, np.uint8), tensor.reshape(-1).view(np.uint8)])
    found = [bytes_of(data, run) for run in runs(7, shape, 4, box)]
    joined = np.concatenate(found) if found else np.empty(0, np.uint8)
    assert joined.tobytes() == np.ascontiguousarray(tensor[slices(box)]).tobytes()


@given(boxes(), st.integers(1, 30))
def test_a_region_without_a_part_and_the_part_are_the_region(case, most):
    shape, box = case
    part = intersect(box, whole(tuple(max(1, size - 1) for size in shape)))
    if part is not None:
        assert volume(box) == volume(part) + sum(map(volume, subtract(box, part)))
    if volume(box):
        assert sum(map(volume, split_rows(box, 1, most))) == volume(box)


@pytest.mark.parametrize("learner", [RankLayout(fsdp=2, tp=2), RankLayout(pp=2), RankLayout(fsdp=3)])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_wanted_byte_comes_from_one_owner(learner, tp):
    engine = RankLayout(tp=tp)
    received = [{name: np.zeros(shape, int) for name, (shape, _) in SHAPES.items()} for _ in range(tp)]
    for each in plan_copy(SHAPES, learner, engine):
        received[each.receiver][each.name][slices(each.box)] += 1
    for rank, tensors in enumerate(received):
        wanted = {name: np.zeros(shape, int) for name, (shape, _) in SHAPES.items()}
        for name, box in engine.parts(SHAPES)[rank]:
            wanted[name][slices(box)] = 1
        for name, found in tensors.items():
            assert (found == wanted[name]).all(), name


def test_the_nearest_owner_sends_and_equal_owners_share_the_load():
    owned = [[("a", whole((8,)))], [("a", whole((8,)))], [("a", whole((8,)))]]
    near = make_plan([[("a", whole((8,)))]], owned, lambda name: 4, lambda owner, receiver: abs(owner - 2))
    assert [(each.owner, each.nbytes) for each in near] == [(2, 32)]
    parts = share_out({"a": (4,), "b": (4,)}, [[("a", whole((4,))), ("b", whole((4,)))]] * 2)
    assert [len(each) for each in parts] == [1, 1]
    with pytest.raises(ConfigError, match="no owner registered a"):
        make_plan([[("a", whole((8,)))]], [[("a", ((0, 4),))]], lambda name: 1)


def test_the_prediction_moves_the_bytes_of_the_plan():
    shapes = mixture(3e9)
    engine = RankLayout(tp=4, ep=4, dp=8)
    found = simulate(shapes, RankLayout(fsdp=4, tp=2, ep=8), engine, Links(), 64 << 20)
    copy = sum(each.nbytes for each in plan_copy(shapes, RankLayout(fsdp=4, tp=2, ep=8), engine))
    assert found.moved == 8 * copy
    assert total_bytes(shapes) <= copy < 1.5 * total_bytes(shapes)  # some small tensors are on every rank
    assert found.direct * found.chain >= 8
    more = simulate(shapes, RankLayout(fsdp=4, tp=2, ep=8), RankLayout(tp=4, ep=4, dp=64), Links(), 64 << 20)
    assert found.seconds <= more.seconds < 3 * found.seconds, "copies pass buckets on"


def test_a_layout_is_read_back_from_its_header():
    layout = layout_of([("x", "bfloat16", (3, 4)), ("y", "float32", (2,))])
    assert layout_from(layout.header) == layout
    assert layout.nbytes == 24 + 8


def test_a_layout_with_an_unknown_degree_is_refused():
    assert RankLayout.parse("fsdp=2,tp=4", "learner").ranks == 8
    with pytest.raises(ConfigError, match="'xp=2' is not one of"):
        RankLayout.parse("xp=2", "learner")
