"""SmolLM3: Llama without rotary embedding in every fourth layer."""

from rondo.models.architecture import Dense, Layer, ModelConfig
from rondo.models.families import Family
from rondo.models.families.common import (
    Hf,
    activation,
    decoder_slots,
    gqa,
    head_dim,
    model_config,
    per_layer,
    rope,
    sliding_layers,
)


def parse(hf: Hf) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    mlp = Dense(hf["intermediate_size"], activation(hf), bool(hf.get("mlp_bias", False)))
    rotary = rope(hf, head_dim(hf), theta=2000000.0)
    layers = []
    for i, rotates in enumerate(_rotates(hf)):
        window = (
            hf.get("sliding_window") if hf.get("use_sliding_window") and _slides(hf, i, rotates) else None
        )
        layers.append(Layer(gqa(hf, rotary if rotates else None, window, qkv_bias=bias, out_bias=bias), mlp))
    return model_config(hf, layers, tied=True)


def _rotates(hf: Hf) -> list[bool]:
    listed = per_layer(hf, "no_rope_layers")
    if listed:
        return [bool(flag) for flag in listed]
    every = hf.get("no_rope_layer_interval", 4)
    return [(i + 1) % every != 0 for i in range(hf["num_hidden_layers"])]


def _slides(hf: Hf, layer: int, rotates: bool) -> bool:
    slides = sliding_layers(hf)
    return not rotates if slides is None else slides[layer]


FAMILY = Family(parse, decoder_slots)
