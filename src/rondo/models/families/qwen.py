"""Qwen2 and 2.5 (biases on q, k, v), Qwen3 (norms on q and k instead) and its mixture of experts."""

from rondo.models.architecture import Dense, Layer, ModelConfig, Moe
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
from rondo.ops import RouterSpec


def parse(hf: Hf) -> ModelConfig:
    rotary = rope(hf, head_dim(hf))
    layers = []
    for i, window in enumerate(_windows(hf)):
        if hf["model_type"] == "qwen2":
            attention = gqa(hf, rotary, window, qkv_bias=True)
        else:
            bias = bool(hf.get("attention_bias", False))
            attention = gqa(hf, rotary, window, qkv_bias=bias, out_bias=bias, qk_norm="head")
        layers.append(
            Layer(
                attention, _moe(hf) if _is_sparse(hf, i) else Dense(hf["intermediate_size"], activation(hf))
            )
        )
    return model_config(hf, layers)


def _windows(hf: Hf) -> list[int | None]:
    if not hf.get("use_sliding_window"):
        sliding_layers(hf)
        return [None] * hf["num_hidden_layers"]
    window, slides = hf.get("sliding_window"), sliding_layers(hf)
    if slides is not None:
        return [window if sliding else None for sliding in slides]
    if hf["model_type"] == "qwen3_moe":
        return [window] * hf["num_hidden_layers"]
    first = hf.get("max_window_layers", 28)
    return [window if i >= first else None for i in range(hf["num_hidden_layers"])]


def _is_sparse(hf: Hf, layer: int) -> bool:
    if hf["model_type"] != "qwen3_moe" or layer in (hf.get("mlp_only_layers") or []):
        return False
    return bool((layer + 1) % hf.get("decoder_sparse_step", 1) == 0)


def _moe(hf: Hf) -> Moe:
    experts = hf["num_experts"] if "num_experts" in hf else hf["num_local_experts"]
    router = RouterSpec(
        experts, hf["num_experts_per_tok"], "softmax", normalize=bool(hf.get("norm_topk_prob", False))
    )
    return Moe(router, hf["moe_intermediate_size"], activation(hf))


FAMILY = Family(parse, decoder_slots)
