"""What is recommended: it divides, it fits, it is the fastest; and the classic rules say what they always say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.base.errors import ConfigError
from rondo.plan.choice.classic import classic
from rondo.plan.choice.planning import plan
from rondo.plan.choice.reasons import reasons
from rondo.plan.choice.search import MOST_VIRTUAL, ROOM, TRAINER, PlanningTask, refusals, search
from rondo.plan.cost.cluster import GPUS, Cluster
from rondo.plan.cost.layout import Layout, Policy, StepBatch, check
from rondo.plan.cost.memory import stage_parameters
from rondo.plan.sizes.shapes import SHAPES


def task(
    name: str, gpus: int, sequences: int = 512, length: int = 8192, gpu: str = "h100", **pins: object
) -> PlanningTask:
    return PlanningTask(SHAPES[name], Cluster(GPUS[gpu], gpus), StepBatch(sequences, length), pins=pins)


SOME = st.sampled_from(["qwen3-0.6b", "llama-3-8b", "llama-3-70b", "mixtral-8x7b"])


@given(
    SOME,
    st.sampled_from([1, 2, 8, 24, 64]),
    st.sampled_from(["a100", "h200"]),
    st.sampled_from([24, 64, 384]),
)
@settings(max_examples=15)
def test_a_recommendation_divides_and_fits(name, gpus, gpu, sequences):
    asked = task(name, gpus, sequences, 4096, gpu)
    best = search(asked).best
    if best is not None:
        check(best.shape, best.cluster, best.layout, best.policy, best.batch)
        assert best.fits_in(ROOM * best.cluster.gpu.memory)
        assert best.layout.tp <= best.cluster.node


def test_more_memory_is_never_slower():
    small = task("llama-3-70b", 64)
    gpu = small.cluster.gpu
    large = replace(small, cluster=Cluster(replace(gpu, memory=2 * gpu.memory), 64))
    assert search(large).plans[0].seconds <= search(small).plans[0].seconds


def test_a_small_model_is_not_divided():
    best = search(task("llama-3-8b", 8)).best
    assert best is not None
    assert (best.layout.dp, best.layout.tp, best.layout.pp) == (8, 1, 1)


def test_a_large_model_is_divided_in_the_node_first():
    best = search(task("llama-3-405b", 1024)).best
    assert best is not None
    assert best.layout.tp == 8
    assert best.layout.pp > 1


def test_a_zero_bubble_schedule_is_looked_at():
    """Where stages have little to do, it is faster than one that interleaves pieces."""
    found = search(task("llama-3-70b", 512))
    assert found.best is not None
    assert found.best.layout.schedule == "zero-bubble"
    with_bubbles = [plan for plan in found.plans if plan.layout.schedule != "zero-bubble"]
    assert found.best.seconds < with_bubbles[0].seconds


@given(SOME, st.sampled_from([64, 256]))
@settings(max_examples=6)
def test_the_trainer_takes_every_plan(name, gpus):
    for found in search(task(name, gpus)).plans:
        assert not list(refusals(found.shape, found.layout, found.policy))
        assert found.layout.virtual <= MOST_VIRTUAL


@pytest.mark.parametrize(
    ("pins", "field"),
    [
        ({"pp": 64, "tp": 1, "schedule": "zero-bubble"}, "schedule"),
        ({"pp": 2, "tp": 1, "schedule": "1f1b", "virtual": 4}, "virtual"),
        ({"pp": 2, "tp": 1, "schedule": "interleaved", "virtual": 1}, "virtual"),
    ],
)
def test_what_the_trainer_refuses_is_named(pins, field):
    with pytest.raises(ConfigError) as error:
        search(task("llama-3-70b", 64, cp=1, **pins))
    assert error.value.param == field


def test_a_zero_bubble_schedule_has_both_ends_of_the_model_on_one_stage():
    shape = SHAPES["llama-3-8b"]
    held = [
        stage_parameters(shape, Layout(pp=4, schedule=schedule), stage).all
        for schedule in ("zero-bubble", "1f1b")
        for stage in range(4)
    ]
    ends = shape.vocabulary_parameters
    assert held[0] - held[1] == pytest.approx(2 * ends)
    assert held[4] - held[5] == held[7] - held[6] == pytest.approx(ends)


def test_experts_multiply_in_16_bits():
    """fp8 is for the matrices of layers: experts gain nothing from it."""
    low = task("mixtral-8x7b", 64, ep=8, tp=1, pp=1, microbatch=1, zero=3, checkpointing="full")
    ours, wide = (
        search(replace(low, policy=replace(TRAINER, precision=precision))).plans[0].step.products
        for precision in ("fp8", "bf16")
    )
    theirs = replace(TRAINER, precision="fp8", low_experts=True)
    assert search(replace(low, policy=theirs)).plans[0].step.products < 0.7 * ours
    assert 0.7 * wide < ours < wide


def test_long_sequences_are_divided():
    best = search(task("llama-3-8b", 64, 8, 262144)).best
    assert best is not None
    assert best.layout.cp > 1


def test_both_ways_to_divide_a_sequence_are_looked_at():
    found = search(task("llama-3-8b", 64, 8, 262144, cp=8, tp=2))
    assert {plan.layout.cp_method for plan in found.plans} == {"ulysses", "ring"}
    assert found.best is not None
    assert any("cp_method" in reason for reason in reasons(found.best, found))
    fixed = search(task("llama-3-8b", 64, 8, 262144, cp=8, tp=2, cp_method="ring"))
    assert {plan.layout.cp_method for plan in fixed.plans} == {"ring"}


def test_a_ring_takes_ranks_that_do_not_divide_heads():
    found = search(task("smollm2-135m", 8, 8, 65536, cp=8, tp=1))
    assert {plan.layout.cp_method for plan in found.plans} == {"ring"}


def test_what_is_fixed_stays():
    pins = {"tp": 2, "pp": 2, "zero": 1, "checkpointing": "full", "microbatch": 2}
    best = search(task("llama-3-8b", 8, **pins)).best
    assert best is not None
    assert (best.layout.tp, best.layout.pp, best.layout.dp) == (2, 2, 2)
    assert (best.policy.zero, best.policy.checkpointing, best.policy.microbatch) == (1, "full", 2)


def test_what_cannot_be_fixed_is_named():
    with pytest.raises(ConfigError, match="tp: 3 does not divide 32 heads") as error:
        search(task("llama-3-8b", 9, 513, tp=3, pp=1, cp=1))
    assert error.value.param == "tp"
    with pytest.raises(ConfigError, match="the cluster has 8") as error:
        search(task("llama-3-8b", 8, tp=4, pp=4, cp=1))
    assert error.value.param == "gpus"


def test_host_memory_is_the_last_resort_and_has_an_end():
    one = task("llama-3-8b", 1, 16, 4096)
    best = search(one).best
    assert best is not None
    assert best.policy.offload != "none"
    poor = replace(one, cluster=Cluster(replace(GPUS["h100"], host_memory=2**30), 1))
    answer = plan(poor)
    assert answer.chosen is None
    assert "no plan fits" in answer.reasons[0]
    assert "of these GPUs a plan fits" in answer.reasons[-1]


@pytest.mark.parametrize(
    ("name", "gpus", "tp", "pps"),
    [
        ("qwen3-1.7b", 8, 1, {1}),
        ("llama-3-8b", 64, 8, {1}),
        ("llama-3-70b", 128, 8, {2, 4}),
        ("llama-3-405b", 1024, 8, {8, 16}),
    ],
)
def test_the_matrix(name, gpus, tp, pps):
    layout = classic(task(name, gpus)).plan.layout
    assert layout.tp == tp
    assert layout.pp in pps
    assert layout.dp == gpus // (layout.tp * layout.pp)


def test_experts_are_divided_by_the_classic_rules():
    layout = classic(task("qwen3-30b-a3b", 64)).plan.layout
    assert (layout.tp, layout.pp, layout.ep) == (1, 1, 8)


@pytest.mark.parametrize(
    ("memory", "zero", "checkpointing", "offload"),
    [(60, 1, "none", "none"), (30, 2, "full", "none"), (8, 3, "full", "none"), (4, 3, "full", "all")],
)
def test_the_tree(memory, zero, checkpointing, offload):
    """Of a 1.7B model, whose undivided states and activations take 46 GiB."""
    small = task("qwen3-1.7b", 8, 8, 4096)
    gpu = replace(GPUS["h100"], memory=memory * 2**30)
    policy = classic(replace(small, cluster=Cluster(gpu, 8))).plan.policy
    assert (policy.zero, policy.checkpointing, policy.offload) == (zero, checkpointing, offload)


def test_both_answers_are_there_with_their_figures():
    ours = plan(task("llama-3-70b", 64))
    assert ours.cost is not None
    assert ours.rules is not None
    assert ours.chosen is ours.cost
    assert not ours.agrees
    assert ours.cost.seconds < ours.rules.plan.seconds
    theirs = plan(task("llama-3-70b", 64), "classic")
    assert theirs.chosen == ours.rules.plan


def test_the_rules_agree_where_the_model_does():
    few = PlanningTask(
        SHAPES["qwen3-0.6b"],
        Cluster(GPUS["h200"], 8),
        StepBatch(64, 4096),
        Policy(loss="chunked"),
        {"zero": 1},
    )
    assert plan(few).agrees


def test_each_choice_has_its_reason():
    said = "\n".join(plan(task("llama-3-405b", 1024)).reasons)
    for word in ("tp 8", "pp ", "idle", "step time"):
        assert word in said
