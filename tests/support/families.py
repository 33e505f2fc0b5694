"""Small random models of every family, made by transformers itself."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
import transformers as hf

VOCAB = 199
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
DEEPSEEK_ROPE = {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 32, "beta_slow": 1}


def _base(**more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return settings | more


def _longrope(dim: int) -> dict[str, Any]:
    short = [1.0 + 0.1 * i for i in range(dim // 2)]
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": short,
        "long_factor": [2 * f for f in short],
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75,
    }


def _deepseek(**more: Any) -> dict[str, Any]:
    settings = _base(
        num_key_value_heads=4,
        moe_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_shared_experts=2,
        first_k_dense_replace=1,
        kv_lora_rank=24,
        q_lora_rank=40,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=20,
        routed_scaling_factor=1.5,
        n_group=4,
        topk_group=2,
    )
    return settings | more


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama2": lambda: hf.LlamaConfig(**_base(num_key_value_heads=4)),
    "llama3": lambda: hf.LlamaConfig(**_base(rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)),
    "llama-biases": lambda: hf.LlamaConfig(**_base(attention_bias=True, mlp_bias=True, head_dim=24)),
    "llama-linear": lambda: hf.LlamaConfig(
        **_base(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0})
    ),
    "llama-dynamic": lambda: hf.LlamaConfig(
        **_base(
            max_position_embeddings=32,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
        )
    ),
    "llama-yarn": lambda: hf.LlamaConfig(**_base(rope_parameters=YARN_ROPE)),
    "mistral": lambda: hf.MistralConfig(**_base(sliding_window=7)),
    "qwen2": lambda: hf.Qwen2Config(**_base(tie_word_embeddings=True)),
    "qwen2.5-window": lambda: hf.Qwen2Config(
        **_base(use_sliding_window=True, sliding_window=9, max_window_layers=1)
    ),
    "qwen3": lambda: hf.Qwen3Config(**_base(head_dim=24, tie_word_embeddings=True)),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(
        **_base(
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        )
    ),
    "smollm3": lambda: hf.SmolLM3Config(**_base(no_rope_layer_interval=2, tie_word_embeddings=True)),
    "gemma2": lambda: hf.Gemma2Config(**_base(head_dim=16, sliding_window=8, query_pre_attn_scalar=24)),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **_base(
            head_dim=16,
            sliding_window=8,
            query_pre_attn_scalar=24,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        )
    ),
    "phi3": lambda: hf.Phi3Config(**_base(sliding_window=11)),
    "phi4-longrope": lambda: hf.Phi3Config(
        **_base(original_max_position_embeddings=32, rope_parameters=_longrope(12), tie_word_embeddings=True)
    ),
    "olmo2": lambda: hf.Olmo2Config(**_base()),
    "mixtral": lambda: hf.MixtralConfig(**_base(num_local_experts=4, num_experts_per_tok=2)),
    "gpt-oss": lambda: hf.GptOssConfig(
        **_base(
            head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=6, rope_parameters=None
        )
    ),
    "deepseek-v2-lite": lambda: hf.DeepseekV2Config(**_deepseek(q_lora_rank=None, topk_method="greedy")),
    "deepseek-v2": lambda: hf.DeepseekV2Config(
        **_deepseek(topk_method="group_limited_greedy", rope_parameters=DEEPSEEK_ROPE)
    ),
    "deepseek-v3": lambda: hf.DeepseekV3Config(**_deepseek(rope_parameters=DEEPSEEK_ROPE, num_mtp_layers=0)),
}


def reference(name: str) -> Any:
    """A transformers model in fp32, every tensor of it random (zero biases and unit norms would hide mistakes).

    A copy each time: with dynamic RoPE transformers remembers the longest sequence it has seen.
    """
    return deepcopy(_reference(name))


@cache
def _reference(name: str) -> Any:
    torch.manual_seed(7)
    config = CONFIGS[name]()
    config._attn_implementation = "eager"
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            matrix = tensor.dim() > 1
            tensor.normal_(0.0, 0.15 if matrix else 0.3)
            if "norm" in key and "gemma" not in name:
                tensor.add_(1.0)
        for key, tensor in model.named_buffers():
            if key.endswith("correction_bias"):
                tensor.normal_(0.0, 0.3)
    return model
