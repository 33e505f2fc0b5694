"""A model and a tokenizer small enough to be made anew in each test."""

from typing import Any

from rondo import models
from rondo.models import Decoder
from rondo.text.bpe import train_bpe
from rondo.text.tokenizer import Tokenizer

VOCAB = 300


def tiny_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.18,
    } | changes


TINY_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
"""Changes that make experts of it, in every layer."""
TINY_MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "tie_word_embeddings": False,
}
"""Changes that make it DeepSeek-V3 in small: latents, shared experts, corrected routers."""
TINY_MLA_2 = TINY_MLA | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "scoring_func": "softmax",
    "topk_method": "greedy",
}
"""DeepSeek-V2-Lite in small: queries without latents, routers that nothing corrects."""
TINY_OLMO = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "tie_word_embeddings": False,
}
"""Norms over all heads at once, and after the half layers."""
TINY_GEMMA = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""Soft caps, windows, four norms a layer, a scaled embedding."""
TINY_GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 6,
    "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "tie_word_embeddings": False,
}
"""Sinks, and biases everywhere, the experts' own too."""
TINY_BIASES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": True,
    "mlp_bias": True,
}


def tiny_tokenizer() -> Tokenizer:
    return train_bpe(["the user asks and the assistant answers", "reverse add sort countdown to"] * 3, VOCAB)


def tiny_model(seed: int = 0, **changes: Any) -> Decoder:
    tokenizer = tiny_tokenizer()
    ends = {"eos_token_id": list(tokenizer.eos_ids), "pad_token_id": tokenizer.pad_id}
    return models.new(tiny_config(**ends, **changes), seed=seed)
