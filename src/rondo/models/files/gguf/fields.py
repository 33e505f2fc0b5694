"""The metadata of a GGUF file that describe a model's architecture, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rondo.base.errors import ModelError
from rondo.models.architecture import Gqa, ModelConfig, Moe
from rondo.models.files.gguf.architectures import Architecture
from rondo.models.files.gguf.config import llama3_factors
from rondo.ops.pointwise.rope import RopeSpec

Fields = dict[str, Any]
FLOATS = frozenset(
    {
        *("attention.layer_norm_rms_epsilon", "attn_logit_softcapping", "final_logit_softcapping"),
        *("rope.freq_base", "rope.freq_base_swa", "rope.scaling.factor", "rope.scaling.attn_factor"),
        *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    }
)
"""Fields that llama.cpp reads as fp32 only, although a config may have whole numbers."""


def architecture_fields(name: str, kind: Architecture, config: ModelConfig) -> Fields:
    """Fields with the architecture's name as prefix."""
    hf = config.hf or {}
    attention = config.layers[0].attention
    assert isinstance(attention, Gqa)
    fields: Fields = {
        "context_length": config.max_positions,
        "embedding_length": config.hidden_size,
        "block_count": len(config.layers),
        "vocab_size": config.vocab_size,
        "attention.head_count": attention.num_heads,
        "attention.head_count_kv": attention.num_kv_heads,
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        **_mlp(kind, config, hf),
        **_family(kind, config),
    }
    spec = _main_rope(config)
    fields |= {"rope.dimension_count": spec.dim, "rope.freq_base": spec.theta, **_scaling(spec)}
    return {
        f"{name}.{key}": float(value) if key in FLOATS else value
        for key, value in fields.items()
        if value is not None
    }


def rope_tensors(config: ModelConfig) -> dict[str, list[float]]:
    """Tensors with the factors of rotary embeddings that metadata cannot describe."""
    spec = _main_rope(config)
    if _one_set(spec):
        return {"rope_freqs.weight": list(spec.long_factor)}
    if spec.kind == "longrope":
        return {
            "rope_factors_long.weight": list(spec.long_factor),
            "rope_factors_short.weight": list(spec.short_factor),
        }
    return {"rope_freqs.weight": factors_of(spec)} if spec.kind == "llama3" else {}


def factors_of(spec: RopeSpec) -> list[float]:
    """The factors of Llama 3's rotary embedding."""
    settings = {
        "factor": spec.factor,
        "low_freq_factor": spec.low_freq_factor,
        "high_freq_factor": spec.high_freq_factor,
        "original_max_position_embeddings": spec.original_max_positions,
    }
    return llama3_factors(settings, spec.theta, spec.dim)


def _one_set(spec: RopeSpec) -> bool:
    """Whether the factors do not depend on the length, as in a GGUF file of Llama 3 with unpublished settings."""
    return spec.kind == "longrope" and spec.short_factor == spec.long_factor and spec.attention_factor == 1.0


def _main_rope(config: ModelConfig) -> RopeSpec:
    """The rotary embedding of the last layer that has one: in Gemma 3 that of full attention."""
    found = [layer.attention.rope for layer in config.layers if not _window(layer.attention)] or [
        layer.attention.rope for layer in config.layers
    ]
    spec = next((each for each in reversed(found) if each is not None), None)
    if spec is None:
        raise ModelError("No layer has a rotary embedding, which GGUF cannot express.", param="rope_theta")
    return spec


def _window(attention: object) -> int | None:
    return attention.window if isinstance(attention, Gqa) else None


def _scaling(spec: RopeSpec) -> Fields:
    match spec.kind:
        case "default" | "llama3":
            return {}
        case "longrope" if _one_set(spec):
            return {}
        case "linear":
            return {"rope.scaling.type": "linear", "rope.scaling.factor": spec.factor}
        case "yarn":
            return {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": spec.factor,
                "rope.scaling.original_context_length": spec.original_max_positions,
                "rope.scaling.yarn_beta_fast": spec.beta_fast,
                "rope.scaling.yarn_beta_slow": spec.beta_slow,
            }
        case "longrope":
            return {
                "rope.scaling.original_context_length": spec.original_max_positions,
                "rope.scaling.attn_factor": spec.attention_factor,
            }
        case _:
            raise ModelError(
                f"GGUF cannot express rotary embeddings of type {spec.kind!r}: use another type, or serve the model's "
                "safetensors files.",
                param="rope_parameters.rope_type",
            )


def _mlp(kind: Architecture, config: ModelConfig, hf: Mapping[str, Any]) -> Fields:
    fields: Fields = {"feed_forward_length": hf["intermediate_size"]}
    moe = next((layer.mlp for layer in config.layers if isinstance(layer.mlp, Moe)), None)
    if kind.experts is None or moe is None:
        return fields
    fields |= {"expert_count": moe.router.num_experts, "expert_used_count": moe.router.top_k}
    return (
        fields if kind.model_type == "mixtral" else fields | {"expert_feed_forward_length": moe.intermediate}
    )


def _family(kind: Architecture, config: ModelConfig) -> Fields:
    attention = config.layers[0].attention
    assert isinstance(attention, Gqa)
    windows = [_window(layer.attention) for layer in config.layers]
    fields: Fields = {"attention.sliding_window": next(filter(None, windows), None)}
    if kind.window_every is not None:
        pattern = [window is not None for window in windows]
        usual = [(i + 1) % kind.window_every != 0 for i in range(len(windows))]
        fields["attention.sliding_window_pattern"] = None if pattern == usual else pattern
        fields["final_logit_softcapping"] = config.logit_softcap
        fields["attn_logit_softcapping"] = attention.softcap
    if kind.model_type == "gemma3_text":
        local = next((layer.attention.rope for layer in config.layers if _window(layer.attention)), None)
        fields["rope.freq_base_swa"] = None if local is None else local.theta
    return fields
