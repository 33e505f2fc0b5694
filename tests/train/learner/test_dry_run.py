"""A plan is built at its true size on ranks that do not exist, and what is found is what real ranks have."""

import pytest

from rondo.models import parse
from rondo.plan.cost.cluster import Cluster, gpu_of
from rondo.plan.cost.estimate import Estimate
from rondo.plan.cost.layout import Layout, Policy, StepBatch
from rondo.plan.sizes.hf import hf_of, shape_of
from rondo.plan.sizes.shapes import SHAPES
from rondo.train.learner.dry_run import dry_run
from support.tiny import TINY_MLA, TINY_MOE, tiny_config


def planned(layout: Layout, zero: int = 3, **changes: object) -> Estimate:
    shape = shape_of(tiny_config(num_hidden_layers=6, **changes), "tiny")
    cluster = Cluster(gpu_of("h100"), layout.ranks)
    policy = Policy(zero=zero)  # type: ignore[arg-type]
    return Estimate(shape, cluster, layout, policy, StepBatch(layout.dp * 2 * layout.pp, 64))


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.gated])
def test_a_config_of_the_sizes_of_a_name(name: str) -> None:
    shape = SHAPES[name]
    again = shape_of(hf_of(shape), name)
    # Layers that predict further tokens are no part of the decoder.
    assert again.parameters == shape.parameters
    assert again.active_parameters <= shape.active_parameters


def test_every_kind_of_16384_ranks() -> None:
    layout = Layout(dp=1024, tp=2, pp=4, cp=2, schedule="1f1b")
    plan = planned(layout, vocab_size=4096)
    kinds = dry_run(plan, parse(hf_of(plan.shape)))
    assert sum(kind.ranks for kind in kinds) == layout.ranks == 16384
    assert {kind.stage for kind in kinds} >= {0, 3}
    assert all(abs(kind.memory / kind.planned_memory - 1) < 0.05 for kind in kinds)
    ends = sum(kind.layers for kind in kinds if kind.stage in (0, 3))
    inner = 6 - ends
    assert inner >= 2


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        (Layout(dp=4, tp=2, ep=4), TINY_MOE),
        (Layout(dp=4, tp=1, ep=2), TINY_MLA),
        (Layout(dp=2, pp=2, virtual=2, schedule="interleaved"), {}),
        (Layout(dp=2, pp=2, schedule="zero-bubble"), {}),
    ],
)
def test_experts_latents_and_pieces(layout: Layout, changes: dict[str, object]) -> None:
    plan = planned(layout, zero=2, **changes)
    config = parse(tiny_config(num_hidden_layers=6, **changes))
    kinds = dry_run(plan, config)
    whole = plan.shape.parameters
    assert sum(kind.ranks for kind in kinds) == layout.ranks
    assert all(0 < kind.dense + kind.experts < whole for kind in kinds)
    assert all(0 < kind.divided <= kind.dense + kind.experts for kind in kinds)
