"""FLOPs of inference against PyTorch's counter, on models of transformers that decode token by token."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config

from rondo.plan.sizes.hf import shape_of
from rondo.plan.sizes.model import ModelShape

SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}


def counted(config: PretrainedConfig, prompt: int, output: int) -> int:
    """The head is computed for the tokens that are sampled from."""
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(prompt + output - 1)[None] % config.vocab_size
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        past = None
        for place in range(ids.shape[1]):
            made = model.model(ids[:, place : place + 1], past_key_values=past, use_cache=True)
            past = made.past_key_values
            if place >= prompt - 1:
                model.lm_head(made.last_hidden_state)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, head_dim=8),
        Qwen3Config(**SIZES, head_dim=16),
        MistralConfig(**SIZES, head_dim=8, sliding_window=None),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (7, 1), (5, 9)])
def test_the_formula_counts_what_pytorch_counts(config: PretrainedConfig, prompt: int, output: int) -> None:
    shape = shape_of(config.to_dict(), config.model_type)
    assert shape.inference_flops(prompt, output) == counted(config, prompt, output)


def shape(**changes: object) -> ModelShape:
    return dataclasses.replace(ModelShape("tiny", 2, 32, 4, 2, 8, 64, 100), **changes)


def test_cached_tokens_cost_nothing_and_parts_add_up() -> None:
    tiny = shape()
    whole = tiny.inference_flops(50, 10)
    assert tiny.inference_flops(50, 0, 50) == 0
    assert tiny.inference_flops(50, 0) + tiny.inference_flops(50, 10, 50) == whole
    assert tiny.inference_flops(50, 10, 20) == whole - tiny.inference_flops(20, 0)


def test_windows_bound_the_attended_tokens() -> None:
    full, windowed = shape(), shape(windows=(4, None))
    wide = 2 * (full.query_width + full.value_width)
    attended = sum(min(place, 4) for place in range(1, 31))
    difference = wide * (30 * 31 // 2 - attended)
    assert full.inference_flops(30, 0) - windowed.inference_flops(30, 0) == difference
