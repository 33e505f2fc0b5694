"""Counts of parameters and operations, beside published ones and torch's own counter."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from rondo import models
from rondo.base.errors import ConfigError
from rondo.plan.sizes.hf import read_config, shape_of
from rondo.plan.sizes.model import ModelShape
from rondo.plan.sizes.shapes import SHAPES
from support.families import CONFIGS
from support.tiny import tiny_config


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
        ("llama-3-405b", 405.85),
        ("qwen3-0.6b", 0.596),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-235b-a22b", 235.09),
        ("mixtral-8x7b", 46.70),
        ("deepseek-v3", 671.03),
        ("bloom-176b", 176.25),
    ],
)
def test_parameters(name, billions):
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "length", "speed", "teraflops"),
    [
        ("llama-3-8b", 8192, 14451, 744),
        ("llama-3-70b", 8192, 1602, 719),
        ("llama-3-405b", 8192, 292, 737),
        ("deepseek-v3", 4096, 1297, 338),
        ("qwen3-30b-a3b", 4096, 8826, 203),
    ],
)
def test_published_rates_follow_from_published_speeds(name, length, speed, teraflops):
    assert speed * SHAPES[name].flops_per_token(length) / 1e12 == pytest.approx(teraflops, rel=5e-3)


def test_operations_are_those_that_torch_counts():
    shape = ModelShape("small", 2, 1024, 16, 4, 64, 3584, 5000)
    length = 2048
    with torch.device("meta"):
        x = torch.empty(length, shape.hidden, requires_grad=True)
        q = torch.empty(shape.query_width, shape.hidden, requires_grad=True)
        kv = torch.empty(2 * shape.kv_width, shape.hidden, requires_grad=True)
        out = torch.empty(shape.hidden, shape.query_width, requires_grad=True)
        up = torch.empty(2 * shape.intermediate, shape.hidden, requires_grad=True)
        down = torch.empty(shape.hidden, shape.intermediate, requires_grad=True)
        head = torch.empty(shape.vocab, shape.hidden, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        state = x
        for _ in range(shape.layers):
            queries = F.linear(state, q).view(length, shape.heads, -1).transpose(0, 1)[None]
            keys, values = F.linear(state, kv).view(length, 2, shape.kv_heads, -1).permute(1, 2, 0, 3)
            several = shape.heads // shape.kv_heads
            keys, values = (each.repeat_interleave(several, 0)[None] for each in (keys, values))
            scores = torch.softmax(queries @ keys.mT, -1)
            mixed = (scores @ values)[0].transpose(0, 1).reshape(length, -1)
            gate, wide = F.linear(state + F.linear(mixed, out), up).chunk(2, -1)
            state = F.linear(F.silu(gate) * wide, down)
        F.linear(state, head).sum().backward()
    counted = counter.get_total_flops() / length
    assert shape.flops_per_token(length, causal=False) == pytest.approx(counted, rel=1e-4)


def test_half_of_attention_is_hidden_by_the_mask():
    shape = SHAPES["llama-3-8b"]
    assert shape.attention_flops(8192) == shape.attention_flops(8192, causal=False) / 2


def test_windows_bound_what_attention_costs():
    config = tiny_config(sliding_window=64, layer_types=["sliding_attention", "full_attention"])
    seen, whole = shape_of(config, "windowed"), shape_of(tiny_config(), "whole")
    assert seen.windows == (64, None)
    assert seen.attention_flops(64) == whole.attention_flops(64)
    assert seen.attention_flops(4096) < 0.6 * whole.attention_flops(4096)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_config_counts_what_the_model_has(family):
    """But biases and norms of queries and keys, a hundredth of models as small as these."""
    config = CONFIGS[family]().to_dict()
    model = models.new(config, seed=0)
    shape = shape_of(config, family)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert shape.parameters == pytest.approx(counted, rel=0.015)
    windows = tuple(getattr(layer.attention, "window", None) for layer in models.parse(config).layers)
    assert shape.windows == (windows if any(windows) else ())


def test_a_missing_size_is_named():
    config = tiny_config()
    del config["num_hidden_layers"]
    with pytest.raises(ConfigError, match="'num_hidden_layers'") as error:
        shape_of(config, "tiny")
    assert error.value.param == "num_hidden_layers"


@pytest.mark.parametrize("value", [-1, "32", 1.5, True])
def test_a_size_that_is_none_is_named(value):
    with pytest.raises(ConfigError, match="hidden_size"):
        shape_of(tiny_config(hidden_size=value), "tiny")


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_config(tmp_path)
