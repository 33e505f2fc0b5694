"""Serving plans, beside published speeds of decoding."""

from dataclasses import replace

import pytest

from rondo.base.errors import ConfigError
from rondo.plan.cost.cluster import GPUS, Cluster
from rondo.plan.report import flags
from rondo.plan.serving import Load, Replica, group_size, plan_serving, replicas
from rondo.plan.sizes.shapes import SHAPES

CHAT = Load(rate=5, prompt=1000, answer=300)


def replica(name: str, gpu: str, weights: str = "bf16", load: Load = CHAT, tp: int = 1) -> Replica:
    return Replica(SHAPES[name], Cluster(GPUS[gpu], 8), load, tp, weights)


@pytest.mark.parametrize(
    ("name", "gpu", "weights", "requests", "milliseconds"),
    [
        ("llama-3-8b", "h100", "bf16", 4, 6.59),  # vLLM 0.21
        ("llama-3-8b", "a100-40", "bf16", 1, 13.3),  # vLLM 0.23
        ("llama-2-7b", "a100", "bf16", 1, 1e3 / 104.9),  # gpt-fast
        ("llama-2-7b", "a100", "int8", 1, 1e3 / 155.6),
        ("llama-2-7b", "a100", "int4", 1, 1e3 / 196.8),
    ],
)
def test_steps_take_what_was_measured(name, gpu, weights, requests, milliseconds):
    """A tenth off at most; int8 and int4 were fitted on their rows."""
    taken = replica(name, gpu, weights, Load(1, 256, 128)).step_seconds(requests)
    assert 1e3 * taken == pytest.approx(milliseconds, rel=0.10)


def test_a_full_replica_gives_what_was_measured():
    """MLPerf 5.1, Llama 3.1 8B in fp8 on one H100, offline: 5,777 tokens a second; 778 in and 73 out on average."""
    full = Replica(SHAPES["llama-3-8b"], Cluster(GPUS["h100"], 1), Load(1, 778, 73), 1, "fp8", "fp8")
    assert 73 * full.rate(full.most_requests) == pytest.approx(5777, rel=0.25)


def test_more_at_a_time_is_more_in_all_and_slower_for_each():
    one = replica("llama-3-8b", "h100")
    counts = (1, 4, 16, 64)
    assert [one.rate(n) for n in counts] == sorted(one.rate(n) for n in counts)
    assert [one.between_seconds(n) for n in counts] == sorted(one.between_seconds(n) for n in counts)


def test_a_plan_carries_its_load():
    for rate in (1, 20, 60):
        load = Load(rate, 1000, 300)
        best = plan_serving(SHAPES["llama-3-8b"], Cluster(GPUS["h100"], 8), load).best
        assert best is not None
        assert best.rate > rate
        assert best.requests <= best.replica.most_requests
        assert best.gpus <= 8


def test_exact_weights_are_preferred_while_they_carry_the_load():
    few = plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 8), CHAT)
    assert few.best is not None
    assert few.best.replica.weights == "bf16"
    tight = plan_serving(SHAPES["qwen3-32b"], Cluster(GPUS["h100"], 1), CHAT)
    assert tight.best is not None
    assert tight.best.replica.weights == "fp8"
    assert any("bf16 weights" in reason for reason in tight.reasons)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_quantized_weights_are_not_divided(gpus):
    """`rondo serve` refuses them over several ranks."""
    for name in ("llama-3-70b", "llama-3-405b", "deepseek-v3"):
        served = plan_serving(SHAPES[name], Cluster(GPUS["h200"], gpus), CHAT)
        shown = [*([served.best] if served.best else []), *served.others]
        assert all(each.replica.tp == 1 for each in shown if each.replica.weights != "bf16")


def test_weights_that_are_given_need_no_reason():
    found = plan_serving(SHAPES["llama-3-8b"], Cluster(GPUS["h100"], 1), CHAT, weights="int8")
    assert found.best is not None
    assert not any("bf16 weights" in reason for reason in found.reasons)


def test_dividing_quantized_weights_is_refused():
    with pytest.raises(ConfigError, match="fp8 weights run on one rank") as error:
        plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 8), CHAT, tp=2, weights="fp8")
    assert error.value.param == "weights"


def test_groups_of_4_bits_divide_every_matrix():
    assert {name: group_size(SHAPES[name]) for name in ("llama-3-8b", "smollm2-135m")} == {
        "llama-3-8b": 128,
        "smollm2-135m": 64,
    }
    odd = replace(SHAPES["smollm2-135m"], intermediate=1539)
    assert group_size(odd) is None
    weights = {each.weights for each in replicas(odd, Cluster(GPUS["h100"], 1), CHAT, None, None, None)}
    assert weights == {"bf16", "fp8", "int8"}
    with pytest.raises(ConfigError, match="no int4 weights"):
        plan_serving(odd, Cluster(GPUS["h100"], 1), CHAT, weights="int4")


def test_targets_are_met():
    loose = plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 8), CHAT).best
    assert loose is not None
    fast = Load(1, 1000, 300, between=0.02)
    tight = plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 8), fast).best
    assert tight is not None
    assert tight.between <= 0.02
    assert tight.replica.tp >= loose.replica.tp


def test_latents_take_less_cache():
    """576 values a token and layer, on every rank."""
    load = Load(1, 1000, 24)
    kept = Replica(SHAPES["deepseek-v3"], Cluster(GPUS["h200"], 8), load, 8, "fp8").request_bytes(1024)
    assert kept == 1024 * 61 * 2 * (512 + 64)


def test_what_cannot_be_served_says_why():
    none = plan_serving(SHAPES["llama-3-405b"], Cluster(GPUS["l4"], 8), CHAT)
    assert none.best is None
    assert "do not fit" in none.reasons[0]
    much = plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 4), Load(500, 1000, 300))
    assert much.best is None
    assert "at least" in much.reasons[0]
    fast = plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 8), Load(1, 1000, 300, between=1e-4))
    assert fast.best is None
    assert "targets" in fast.reasons[0]


def test_a_tighter_target_leaves_less_of_a_step_to_prompts():
    h100 = Cluster(GPUS["h100"], 8)
    pieces = [
        plan_serving(SHAPES["llama-3-8b"], h100, Load(5, 4000, 300, between=between), tp=1).best
        for between in (0.015, 0.03, 0.1)
    ]
    tokens = [best.step_tokens for best in pieces if best is not None]
    assert tokens == sorted(tokens)
    assert tokens[0] < tokens[-1]


def test_flags_are_those_of_the_server():
    from rondo.cli.options.flags import FLAGS

    best = plan_serving(SHAPES["llama-3-70b"], Cluster(GPUS["h100"], 8), CHAT, cache="fp8").best
    assert best is not None
    assert set(flags(best)[::2]) <= FLAGS.keys()


@pytest.mark.parametrize("field", ["rate", "prompt", "answer"])
def test_a_load_of_nothing_is_named(field):
    with pytest.raises(ConfigError) as error:
        Load(**({"rate": 1.0, "prompt": 1, "answer": 1} | {field: 0}))
    assert error.value.param == field


def test_longer_than_the_model_sees_is_an_error():
    with pytest.raises(ConfigError, match="40960"):
        plan_serving(SHAPES["qwen3-8b"], Cluster(GPUS["h100"], 8), Load(1, 50000, 10))
