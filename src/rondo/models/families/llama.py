"""Llama 2 and 3, and Mistral: the plain decoder."""

from rondo.models.architecture import Dense, Layer, ModelConfig
from rondo.models.families import Family
from rondo.models.families.common import (
    Hf,
    activation,
    decoder_slots,
    gqa,
    head_dim,
    model_config,
    rope,
    windows,
)


def parse(hf: Hf) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    mlp = Dense(hf["intermediate_size"], activation(hf), bool(hf.get("mlp_bias", False)))
    rotary = rope(hf, head_dim(hf))
    layers = [Layer(gqa(hf, rotary, window, qkv_bias=bias, out_bias=bias), mlp) for window in windows(hf)]
    return model_config(hf, layers)


FAMILY = Family(parse, decoder_slots, ignored=lambda config: (r"\.rotary_emb\.inv_freq$",))
