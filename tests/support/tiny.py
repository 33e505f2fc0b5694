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


def tiny_tokenizer() -> Tokenizer:
    return train_bpe(["the user asks and the assistant answers", "reverse add sort countdown to"] * 3, VOCAB)


def tiny_model(seed: int = 0, **changes: Any) -> Decoder:
    tokenizer = tiny_tokenizer()
    ends = {"eos_token_id": list(tokenizer.eos_ids), "pad_token_id": tokenizer.pad_id}
    return models.new(tiny_config(**ends, **changes), seed=seed)
