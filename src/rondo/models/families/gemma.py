"""Gemma 2 and 3 (text): norms around both halves of a layer, GeGLU, alternating windows, scaled embeddings."""

import math

from rondo.base.errors import ModelError
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
    sliding_layers,
)
from rondo.ops import RopeSpec


def parse(hf: Hf) -> ModelConfig:
    if hf.get("use_bidirectional_attention"):
        raise ModelError(
            "config.json: bidirectional attention is not supported", param="use_bidirectional_attention"
        )
    bias = bool(hf.get("attention_bias", False))
    mlp = Dense(hf["intermediate_size"], activation(hf, "hidden_activation", "gelu_pytorch_tanh"))
    softcap = hf.get("attn_logit_softcapping")
    layers = []
    for slides in _slides(hf):
        attention = gqa(
            hf,
            _rope(hf, slides),
            hf.get("sliding_window") if slides else None,
            scale=hf["query_pre_attn_scalar"] ** -0.5,
            softcap=softcap,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm="head" if hf["model_type"] == "gemma3_text" else None,
        )
        layers.append(Layer(attention, mlp, norms="both"))
    return model_config(
        hf,
        layers,
        tied=True,
        norm_offset=1.0,
        embed_scale=math.sqrt(hf["hidden_size"]),
        logit_softcap=hf.get("final_logit_softcapping"),
    )


def _slides(hf: Hf) -> list[bool]:
    slides = sliding_layers(hf)
    if slides is not None:
        return slides
    default = 6 if hf["model_type"] == "gemma3_text" else 2
    every = hf.get("sliding_window_pattern") or hf.get("_sliding_window_pattern") or default
    return [(i + 1) % every != 0 for i in range(hf["num_hidden_layers"])]


def _rope(hf: Hf, slides: bool) -> RopeSpec:
    if hf["model_type"] == "gemma2":
        return rope(hf, head_dim(hf))
    if "rope_parameters" in hf:
        kind = "sliding_attention" if slides else "full_attention"
        return rope(hf, head_dim(hf), theta=10000.0 if slides else 1000000.0, layer_type=kind)
    if slides:
        return rope({"rope_theta": hf.get("rope_local_base_freq", 10000.0)}, head_dim(hf))
    return rope(hf, head_dim(hf), theta=1000000.0)


FAMILY = Family(parse, decoder_slots)
