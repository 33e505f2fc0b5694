"""Memory, traffic and bubbles, beside the published formulas written out by hand."""

import os
from dataclasses import replace

import pytest
import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.models.attend import Packed
from rondo.ops.native.build.build import compiler
from rondo.plan.cost.cluster import GPUS, Cluster, gpu_of
from rondo.plan.cost.layout import Layout, Policy, StepBatch, check
from rondo.plan.cost.memory import everything, in_flight, layers_of_stage, memory
from rondo.plan.cost.time import bubble_share, step
from rondo.plan.cost.traffic import traffic
from rondo.plan.sizes.hf import shape_of
from rondo.plan.sizes.model import ModelShape
from rondo.plan.sizes.shapes import SHAPES, gpt
from support.tiny import tiny_config

LLAMA = SHAPES["llama-3-8b"]
BATCH = StepBatch(64, 8192)


@pytest.mark.parametrize(
    ("zero", "each"), [(0, 18.0), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 16 / 8)], ids=["0", "1", "2", "3"]
)
def test_states_of_a_parameter(zero, each):
    held = memory(LLAMA, Layout(dp=8), Policy(zero=zero), BATCH)
    assert held.states / LLAMA.parameters == pytest.approx(each, rel=1e-3)


def test_what_a_llama_layer_keeps():
    """2h(6 + 2 kv/a) + 8f + 4a bytes a token, 4f where SwiGLU's product is computed again."""
    h, f, a, kv = LLAMA.hidden, LLAMA.intermediate, LLAMA.heads, LLAMA.kv_heads
    kept = everything(LLAMA, Layout(), Policy(swiglu="kept"), 8192)
    assert kept == 2 * h * (6 + 2 * kv / a) + 8 * f + 4 * a
    assert everything(LLAMA, Layout(), Policy(), 8192) == kept - 4 * f


@pytest.mark.skipif(
    not compiler() or os.environ.get("RONDO_OPS") == "reference",
    reason="plain torch keeps more: needs a C compiler, RONDO_NATIVE and RONDO_OPS left alone",
)
def test_what_a_layer_of_our_own_keeps():
    """Measured: two layers' saved tensors less those of one, in bf16; the norms keep a float each."""
    measured = saved_a_token(layers=2) - saved_a_token(layers=1)
    shape = shape_of(OWN | {"num_hidden_layers": 1}, "own")
    expected = everything(shape, Layout(), Policy(swiglu="kernel"), TOKENS)
    assert measured == expected + 2 * 4


TOKENS = 64
OWN = tiny_config(
    model_type="llama", hidden_size=64, intermediate_size=224, num_attention_heads=4, head_dim=16
)


def saved_a_token(layers: int) -> float:
    model = models.new(OWN | {"num_hidden_layers": layers}, seed=0, dtype=torch.bfloat16)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in own:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    tokens = torch.arange(TOKENS)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(tokens, tokens, Packed([0, TOKENS]))
    assert logits.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / TOKENS


def test_what_a_gpt_layer_keeps():
    """34 h + 5 a s bytes a token; over t ranks 10 h + (24 h + 5 a s) / t, all over t with sequence parallelism."""
    shape, s = gpt("gpt", 2, 4096, 32, 50000), 2048
    h, a = shape.hidden, shape.heads
    plain = Policy(flash=False, dropout=True, sequence_parallel=False)
    logarithms = 4 * a
    assert everything(shape, Layout(), plain, s) == 34 * h + 5 * a * s + logarithms
    assert everything(shape, Layout(tp=8), plain, s) == 10 * h + (24 * h + 5 * a * s + logarithms) / 8
    both = replace(plain, sequence_parallel=True)
    assert everything(shape, Layout(tp=8), both, s) == (34 * h + 5 * a * s + logarithms) / 8


@pytest.mark.parametrize(
    ("schedule", "virtual", "stage", "waiting"),
    [
        ("gpipe", 1, 0, 32),
        ("1f1b", 1, 0, 8),
        ("1f1b", 1, 7, 1),
        ("interleaved", 2, 0, 8 * (1 + 7 / 16)),
        ("zero-bubble", 1, 0, 8),
    ],
)
def test_microbatches_in_flight(schedule, virtual, stage, waiting):
    assert in_flight(Layout(pp=8, virtual=virtual, schedule=schedule), 32, stage) == waiting


@pytest.mark.parametrize(
    ("pp", "count", "virtual", "idle"), [(8, 8, 1, 0.875), (8, 64, 8, 7 / 512), (16, 16, 1, 0.9375)]
)
def test_bubbles(pp, count, virtual, idle):
    assert bubble_share(Layout(pp=pp, virtual=virtual, schedule="interleaved"), count) == idle


@pytest.mark.parametrize(("layers", "stages"), [(126, 16), (126, 8), (80, 8), (61, 16), (30, 4), (7, 3)])
def test_stages_hold_every_layer_once(layers, stages):
    held = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
    assert sum(held) == layers
    assert max(held) - min(held) <= 1
    assert held[0] == min(held)


def test_sent_bytes():
    h, tokens = LLAMA.hidden, 8192
    layout, policy = Layout(dp=4, tp=2), Policy(zero=1)
    sent = traffic(LLAMA, layout, policy, BATCH)
    count = 16
    layers = 10 * h * 2 * tokens / 2 * LLAMA.layers * count
    ends = (4 * h * 2 * tokens / 2 + 2 * 4 * tokens) * count
    assert sent.tensor == layers + ends + 2 * 2 * h / 2 * (2 * LLAMA.layers + 1)
    assert sent.data == pytest.approx((4 + 2) * LLAMA.parameters / 2 * 3 / 4, rel=1e-3)
    assert sent.pipeline == sent.context == sent.expert == 0

    divided = traffic(LLAMA, Layout(dp=8), Policy(zero=3), BATCH)
    once = 2 * 2 * LLAMA.vocabulary_parameters  # embedding and head are gathered once for both passes
    assert divided.data == pytest.approx(8 * ((2 * 2 + 4) * LLAMA.parameters - once) * 7 / 8, rel=1e-3)

    gradients = traffic(LLAMA, Layout(dp=8), Policy(zero=2), BATCH)
    assert gradients.data == pytest.approx((8 * 4 + 2) * LLAMA.parameters * 7 / 8, rel=1e-3)

    staged = traffic(LLAMA, Layout(dp=2, pp=4, schedule="1f1b"), policy, BATCH)
    assert staged.pipeline == 4 * tokens * h * 32
    # Of two stages each has an end of the model, beyond which nothing is sent.
    ends = [
        traffic(LLAMA, Layout(dp=4, pp=2, virtual=pieces, schedule=schedule), policy, BATCH).pipeline
        for schedule, pieces in (("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1))
    ]
    assert [sent / (2 * tokens * h * 16) for sent in ends] == [1, 3, 2]

    ring = traffic(LLAMA, Layout(dp=2, cp=4), policy, BATCH)
    assert ring.context == 3 * 2 * (2 + 2 + 4) * (tokens / 4) * LLAMA.kv_width * LLAMA.layers * 32

    heads = traffic(LLAMA, Layout(dp=2, cp=4, cp_method="ulysses"), policy, BATCH)
    exchanged = 2 * LLAMA.query_width + 2 * LLAMA.kv_width
    assert heads.context == 3 / 4 * exchanged * (2 + 2) * (tokens / 4) * LLAMA.layers * 32

    sparse = SHAPES["qwen3-30b-a3b"]
    experts = traffic(sparse, Layout(dp=8, ep=8), policy, BATCH)
    assert experts.expert == 8 * sparse.hidden * 8 * tokens * 7 / 8 * 48 * 8


def test_tensor_parallelism_pays_inside_a_node_alone():
    """As measured: speed falls slowly to 8 ranks, and at once beyond."""
    shape = replace(SHAPES["llama-3-70b"], kv_heads=64)
    speeds = {}
    for tp in (1, 2, 4, 8, 16, 32):
        layout = Layout(dp=64 // tp, tp=tp)
        taken = step(shape, Cluster(GPUS["h100"], 64), layout, Policy(), StepBatch(4096, 4096))
        speeds[tp] = 1 / taken.seconds
    ordered = list(speeds.values())
    assert ordered == sorted(ordered, reverse=True)
    assert speeds[8] / speeds[4] > 0.8 > speeds[16] / speeds[8]


@pytest.mark.parametrize(
    ("field", "layout", "policy", "batch"),
    [
        ("gpus", Layout(dp=4), Policy(), BATCH),
        ("tp", Layout(dp=1, tp=8), Policy(), BATCH),
        ("pp", Layout(dp=1, pp=8), Policy(), BATCH),
        ("ep", Layout(dp=8, ep=2), Policy(), BATCH),
        ("virtual", Layout(dp=8, virtual=2), Policy(), BATCH),
        ("batch", Layout(dp=8), Policy(microbatch=3), BATCH),
        ("seq", Layout(dp=2, cp=4), Policy(), StepBatch(64, 102)),
        ("cp", Layout(dp=1, cp=8, cp_method="ulysses"), Policy(), BATCH),
        ("microbatch", Layout(dp=8), Policy(microbatch=0), BATCH),
    ],
)
def test_what_does_not_divide_is_named(field, layout, policy, batch):
    shape = ModelShape("odd", 4, 768, 12, 4, 64, 2048, 50000)
    with pytest.raises(ConfigError) as error:
        check(shape, Cluster(GPUS["h100"], 8), layout, policy, batch)
    assert error.value.param == field
    assert field in error.value.message


def test_a_gpu_that_nobody_knows():
    with pytest.raises(ConfigError, match="Did you mean h100"):
        gpu_of("h10")
    with pytest.raises(ConfigError, match="--bandwidth, --link"):
        gpu_of("mine", memory=48, peak=100)
    mine = gpu_of("mine", memory=48, peak=100, bandwidth=1, link=64, per_node=4)
    assert (mine.memory, mine.peak("bf16"), mine.per_node) == (48 * 2**30, 1e14, 4)
    assert gpu_of("H100", memory=40).memory == 40 * 2**30
