"""Model sizes from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError
from rondo.plan.sizes.model import ExpertShape, Latent, ModelShape

OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "max_position_embeddings": ("n_positions",),
}
UNGATED = frozenset({"gpt2", "gpt_neox", "bloom", "opt", "phi", "gptj", "starcoder2"})
TIED = ("gemma", "gpt2", "bloom", "opt")
"""Families with tied embeddings by default."""


def read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ConfigError(f"{path} has no config.json and no GGUF file, so it is not a model.", param="model")
    try:
        config = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.", param="model") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON: {error}.", param="model") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not a JSON object.", param="model")
    return config


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """Sizes of a config. A missing or invalid size raises ConfigError with its key."""
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) else config
    hidden, heads = _size(config, "hidden_size", name), _size(config, "num_attention_heads", name)
    layers = _size(config, "num_hidden_layers", name)
    kind = str(config.get("model_type", ""))
    latent = _latent(config, name)
    if latent is not None:
        head_dim, kv_heads = latent.nope_dim + latent.rope_dim, heads
    else:
        head_dim = _optional(config, "head_dim", name) or hidden // heads
        kv_heads = _optional(config, "num_key_value_heads", name) or heads
    experts, dense = _experts(config, name, layers)
    wide = _optional(config, "intermediate_size", name)
    if wide is None:
        wide = experts.intermediate if experts else 4 * hidden if kind in UNGATED else None
    if wide is None:
        wide = _size(config, "intermediate_size", name)
    return ModelShape(
        name,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        wide,
        _size(config, "vocab_size", name),
        gated=kind not in UNGATED,
        tied=bool(config.get("tie_word_embeddings", kind.startswith(TIED))),
        experts=experts,
        dense_layers=dense,
        latent=latent,
        predict_layers=_optional(config, "num_nextn_predict_layers", name) or 0,
        windows=_windows(config, layers, kind, name),
        context=_optional(config, "max_position_embeddings", name),
    )


def hf_of(shape: ModelShape) -> dict[str, Any]:
    """A config.json with these sizes, in a family with the same kind of layers. All other fields have usual values."""
    if not shape.gated:
        raise ConfigError(
            f"{shape.name} has MLPs of two matrices; only gated MLPs of three are supported.",
            param="model",
        )
    config: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.context or 4096,
    }
    if shape.latent is not None:
        config |= _hf_of_latent(shape.latent)
    if shape.experts is not None:
        config |= _hf_of_experts(shape, shape.experts)
    return config | {"architectures": [ARCHITECTURES[config["model_type"]]]}


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


def _hf_of_latent(latent: Latent) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v3",
        "kv_lora_rank": latent.kv_rank,
        "q_lora_rank": latent.q_rank,
        "qk_nope_head_dim": latent.nope_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
    }


def _hf_of_experts(shape: ModelShape, experts: ExpertShape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.intermediate,
        "norm_topk_prob": True,
    }
    if shape.latent is None:
        if experts.shared:
            raise ConfigError(
                f"{shape.name} has shared experts without latent attention: no supported family has both.",
                param="model",
            )
        only = list(range(shape.dense_layers))
        return config | {"model_type": "qwen3_moe", "num_experts": experts.count, "mlp_only_layers": only}
    return config | {
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared // experts.intermediate,
        "first_k_dense_replace": shape.dense_layers,
    }


def _size(config: Mapping[str, Any], key: str, name: str) -> int:
    found = _optional(config, key, name)
    if found is None:
        raise ConfigError(f"The config of {name} has no {key!r}.", param=key)
    return found


def _optional(config: Mapping[str, Any], key: str, name: str) -> int | None:
    value = next((config[k] for k in (key, *OTHER_NAMES.get(key, ())) if config.get(k) is not None), None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ConfigError(f"{key!r} of {name} is {value!r}; it must be a whole number.", param=key)
    return value


def _latent(config: Mapping[str, Any], name: str) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        _size(config, "kv_lora_rank", name),
        _size(config, "qk_nope_head_dim", name),
        _size(config, "qk_rope_head_dim", name),
        _size(config, "v_head_dim", name),
        _optional(config, "q_lora_rank", name),
    )


def _experts(config: Mapping[str, Any], name: str, layers: int) -> tuple[ExpertShape | None, int]:
    """Sizes of the experts, and the number of layers without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    key = next((key for key in names if config.get(key)), None)
    if key is None:
        return None, 0
    width = _optional(config, "moe_intermediate_size", name) or _size(config, "intermediate_size", name)
    shared = (_optional(config, "n_shared_experts", name) or 0) * width
    shared += _optional(config, "shared_expert_intermediate_size", name) or 0
    only = config.get("mlp_only_layers")
    dense = _optional(config, "first_k_dense_replace", name) or (len(only) if isinstance(only, list) else 0)
    chosen = _size(config, "num_experts_per_tok", name)
    return ExpertShape(_size(config, key, name), chosen, width, shared), min(dense, layers)


def _windows(config: Mapping[str, Any], layers: int, kind: str, name: str) -> tuple[int | None, ...]:
    window = _optional(config, "sliding_window", name)
    if not window or config.get("use_sliding_window") is False:
        return ()
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return tuple(window if each == "sliding_attention" else None for each in types)
    match kind:
        case "mistral" | "phi3":
            return (window,) * layers
        case "gemma2":
            return tuple(None if i % 2 else window for i in range(layers))
        case "gemma3_text":
            every = _optional(config, "sliding_window_pattern", name) or 6
            return tuple(None if (i + 1) % every == 0 else window for i in range(layers))
        case _:
            return ()
