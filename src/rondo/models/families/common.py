"""Functions shared by the families: parsing of common config fields, and common tensor names."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rondo.base.errors import ModelError
from rondo.models.architecture import Dense, Gqa, Layer, Mla, ModelConfig, Moe
from rondo.models.files.slots import Slot, one
from rondo.ops import RopeSpec

Hf = Mapping[str, Any]

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def activation(hf: Hf, key: str = "hidden_act", default: str = "silu") -> str:
    name = hf.get(key) or default
    if name not in ACTIVATIONS:
        raise ModelError(
            f"config.json: {key} {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}", param=key
        )
    return ACTIVATIONS[name]


def head_dim(hf: Hf) -> int:
    return int(hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"])


def kv_heads(hf: Hf) -> int:
    return int(hf.get("num_key_value_heads") or hf["num_attention_heads"])


def windows(hf: Hf) -> list[int | None]:
    """The sliding window of each layer, from `layer_types` if the config has it."""
    window, slides = hf.get("sliding_window"), sliding_layers(hf)
    if slides is None:
        return [window] * hf["num_hidden_layers"]
    return [window if sliding else None for sliding in slides]


def sliding_layers(hf: Hf) -> list[bool] | None:
    """Whether each layer uses the sliding window, from `layer_types`; None if the config has none. Unknown kinds raise
    an error."""
    kinds = per_layer(hf, "layer_types")
    if kinds is None:
        return None
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        raise ModelError(f"config.json: layer_types has {names}, which is not supported", param="layer_types")
    return [kind == "sliding_attention" for kind in kinds]


def per_layer(hf: Hf, key: str) -> list[Any] | None:
    """A list with one entry a layer, or None if the config has none."""
    values = hf.get(key)
    if not values:
        return None
    if len(values) != hf["num_hidden_layers"]:
        count = hf["num_hidden_layers"]
        raise ModelError(f"config.json: {key} has {len(values)} entries for {count} layers", param=key)
    return list(values)


def rope(
    hf: Hf, dim: int, *, theta: float = 10000.0, interleaved: bool = False, layer_type: str = ""
) -> RopeSpec:
    """The rotary embedding, from `rope_parameters` (newer configs) or `rope_theta` and `rope_scaling` (older ones)."""
    settings = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    if layer_type and layer_type in settings:
        settings = dict(settings[layer_type] or {})
    theta = settings.get("rope_theta") or hf.get("rope_theta") or theta
    partial = settings.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if int(dim * partial) % 2:
        raise ModelError(f"config.json: rotary embedding of {int(dim * partial)} dimensions, which is odd")
    return RopeSpec(
        dim=int(dim * partial), theta=float(theta), interleaved=interleaved, **_scaling(kind, settings, hf)
    )


def _scaling(kind: str, settings: dict[str, Any], hf: Hf) -> dict[str, Any]:
    longest = hf.get("max_position_embeddings", 0)
    original = (
        settings.get("original_max_position_embeddings")
        or hf.get("original_max_position_embeddings")
        or longest
    )
    factor = settings.get("factor") or (longest / original if original else 1.0)
    if kind == "default":
        return {}
    if kind == "linear":
        return {"kind": "linear", "factor": factor}
    if kind == "dynamic":
        return {"kind": "dynamic", "factor": factor, "original_max_positions": longest}
    if kind == "llama3":
        bands = {key: settings[key] for key in ("low_freq_factor", "high_freq_factor")}
        return {"kind": "llama3", "factor": factor, "original_max_positions": original, **bands}
    if kind == "yarn":
        return {
            "kind": "yarn",
            "factor": factor,
            "original_max_positions": original,
            "beta_fast": settings.get("beta_fast") or 32.0,
            "beta_slow": settings.get("beta_slow") or 1.0,
            "truncate": settings.get("truncate", True),
            "attention_factor": _yarn_attention_factor(settings, factor),
        }
    if kind in ("longrope", "su"):
        stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return {
            "kind": "longrope",
            "factor": factor,
            "original_max_positions": original,
            "short_factor": tuple(settings["short_factor"]),
            "long_factor": tuple(settings["long_factor"]),
            "attention_factor": settings.get("attention_factor") or stretched,
        }
    raise ModelError(f"config.json: rope type {kind!r} is not supported", param="rope_parameters.rope_type")


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn_attention_factor(settings: dict[str, Any], factor: float) -> float:
    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    mscale, all_dims = settings.get("mscale"), settings.get("mscale_all_dim")
    if mscale and all_dims:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dims)
    return yarn_mscale(factor)


def gqa(hf: Hf, rotary: RopeSpec | None, window: int | None = None, **more: Any) -> Gqa:
    size = head_dim(hf)
    settings: dict[str, Any] = {"scale": size**-0.5, "rope": rotary, "window": window, **more}
    return Gqa(hf["num_attention_heads"], kv_heads(hf), size, **settings)


def model_config(hf: Hf, layers: list[Layer], **more: Any) -> ModelConfig:
    """A `ModelConfig` of these layers, with the config fields that all families share."""
    eos = hf.get("eos_token_id")
    return ModelConfig(
        family=hf["model_type"],
        vocab_size=hf["vocab_size"],
        hidden_size=hf["hidden_size"],
        layers=tuple(layers),
        max_positions=hf["max_position_embeddings"],
        norm_eps=hf.get("rms_norm_eps", 1e-6),
        tied=hf.get("tie_word_embeddings", more.pop("tied", False)),
        eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        bos_id=hf.get("bos_token_id"),
        pad_id=hf.get("pad_token_id"),
        hf=dict(hf),
        **more,
    )


# Tensor names.

PartSlots = Callable[[str, str, Any], Iterator[Slot]]

NORMS = {
    "before": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "after": {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"},
    "both": {
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
    },
}


def linear_slots(theirs: str, ours: str, bias: bool = False) -> Iterator[Slot]:
    yield one(f"{theirs}.weight", f"{ours}.weight")
    if bias:
        yield one(f"{theirs}.bias", f"{ours}.bias")


def gqa_slots(theirs: str, ours: str, part: Gqa) -> Iterator[Slot]:
    for name in ("q", "k", "v"):
        yield from linear_slots(f"{theirs}.{name}_proj", f"{ours}.{name}", part.qkv_bias)
    yield from linear_slots(f"{theirs}.o_proj", f"{ours}.o", part.out_bias)
    if part.qk_norm is not None:
        yield one(f"{theirs}.q_norm.weight", f"{ours}.q_norm.weight")
        yield one(f"{theirs}.k_norm.weight", f"{ours}.k_norm.weight")
    if part.sinks:
        yield one(f"{theirs}.sinks", f"{ours}.sinks")


def mla_slots(theirs: str, ours: str, part: Mla) -> Iterator[Slot]:
    if part.q_rank is None:
        yield from linear_slots(f"{theirs}.q_proj", f"{ours}.q")
    else:
        yield from linear_slots(f"{theirs}.q_a_proj", f"{ours}.q_down", part.bias)
        yield one(f"{theirs}.q_a_layernorm.weight", f"{ours}.q_norm.weight")
        yield from linear_slots(f"{theirs}.q_b_proj", f"{ours}.q_up")
    yield from linear_slots(f"{theirs}.kv_a_proj_with_mqa", f"{ours}.kv_down", part.bias)
    yield one(f"{theirs}.kv_a_layernorm.weight", f"{ours}.kv_norm.weight")
    yield from linear_slots(f"{theirs}.kv_b_proj", f"{ours}.kv_up")
    yield from linear_slots(f"{theirs}.o_proj", f"{ours}.o", part.bias)


def dense_slots(theirs: str, ours: str, part: Dense) -> Iterator[Slot]:
    for name in ("gate", "up", "down"):
        yield from linear_slots(f"{theirs}.{name}_proj", f"{ours}.{name}", part.bias)


def moe_slots(theirs: str, ours: str, part: Moe) -> Iterator[Slot]:
    yield one(f"{theirs}.gate.weight", f"{ours}.router.weight")
    if part.correction:
        yield one(f"{theirs}.gate.e_score_correction_bias", f"{ours}.router.correction")
    for expert in range(part.router.num_experts):
        for name in ("gate", "up", "down"):
            yield one(f"{theirs}.experts.{expert}.{name}_proj.weight", f"{ours}.experts.{name}", expert)
    if part.shared is not None:
        yield from dense_slots(f"{theirs}.shared_experts", f"{ours}.shared", part.shared)


def decoder_slots(
    config: ModelConfig,
    *,
    attention: PartSlots | None = None,
    dense: PartSlots = dense_slots,
    moe: PartSlots = moe_slots,
    moe_name: str = "mlp",
) -> Iterator[Slot]:
    """The tensor names of most families; a family passes its own function for a part with other names."""
    yield one("model.embed_tokens.weight", "embed.weight")
    for i, layer in enumerate(config.layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"
        of_attention: PartSlots = attention or (gqa_slots if isinstance(layer.attention, Gqa) else mla_slots)
        yield from of_attention(f"{theirs}.self_attn", f"{ours}.attention", layer.attention)
        if isinstance(layer.mlp, Moe):
            yield from moe(f"{theirs}.{moe_name}", f"{ours}.mlp", layer.mlp)
        else:
            yield from dense(f"{theirs}.mlp", f"{ours}.mlp", layer.mlp)
        for our_norm, their_norm in NORMS[layer.norms].items():
            yield one(f"{theirs}.{their_norm}.weight", f"{ours}.{our_norm}.weight")
    yield one("model.norm.weight", "head.norm.weight")
    if config.scores:
        yield one("score.weight", "head.out.weight")
    elif not config.tied:
        yield one("lm_head.weight", "head.out.weight")
