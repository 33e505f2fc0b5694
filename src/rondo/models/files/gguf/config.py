"""The config.json of a model in a GGUF file, from its metadata. Imports no torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.base.storage.gguf import Gguf, GgufEntry, read_gguf, shortest
from rondo.models.files.gguf.architectures import LLAMA, Architecture, architecture_of
from rondo.text.gguf.reading import end_ids, special_ids

NUMBER = (int, float)
PHI3_SCALING = ("rope_factors_short.weight", "rope_factors_long.weight")
LLAMA3_BANDS = ({"factor": 8.0}, {"factor": 32.0})
"""Published settings of Llama 3's rotary embedding, whose factors a file stores in place of the settings."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LARGE_GEMMAS = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the 27B models, which scale queries by width / heads: the file does not contain the scale."""

Config = dict[str, Any]


def read_config(path: Path) -> Config:
    return config_of(read_gguf(path))


def config_of(gguf: Gguf) -> Config:
    kind, name = architecture_of(gguf), str(gguf.metadata["general.architecture"])
    fields = GgufFields(gguf, name)
    heads = fields.size("attention.head_count")
    hidden = fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", hidden // heads)
    context = fields.size("context_length")
    config: Config = {
        "architectures": [kind.classname],
        "model_type": kind.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": fields.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "vocab_size": _rows(gguf, "token_embd.weight"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-6),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "eos_token_id": end_ids(gguf),
        "dtype": _dtype(gguf),
        **{f"{key}_id": index for key, index in special_ids(gguf).items()},
    }
    config |= _sizes_of_mlp(fields, kind)
    config |= _biases(gguf, kind)
    config |= _rope(gguf, fields, head_dim, context)
    return config | _of_family(kind, fields, config)


class GgufFields:
    """Metadata of the architecture, whose name is the prefix of the keys."""

    def __init__(self, gguf: Gguf, prefix: str) -> None:
        self.gguf, self.prefix = gguf, prefix

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0. A list with one number a layer must repeat the same one."""
        full = f"{self.prefix}.{key}"
        value = self.gguf.get(full, (int, list), default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.gguf.error(full, "differs between layers, which is not supported")
            value = value[0]
        if value is None:
            raise self.gguf.error(full, "is missing")
        if not isinstance(value, int) or not 0 < value < 1 << 40:
            raise self.gguf.error(full, f"is {value!r}, not a whole number above 0")
        return value

    def number(self, key: str, default: float) -> float:
        full = f"{self.prefix}.{key}"
        value = float(self.gguf.get(full, NUMBER, default))
        if not math.isfinite(value):
            raise self.gguf.error(full, f"is {value}, not a finite number")
        return value

    def optional(self, key: str, kind: type | tuple[type, ...]) -> Any:
        return self.gguf.get(f"{self.prefix}.{key}", kind)


def _rows(gguf: Gguf, name: str) -> int:
    entry = gguf.tensors.get(name)
    if entry is None:
        raise gguf.error(name, "is missing: the file has no such tensor")
    return entry.shape[0]


def _dtype(gguf: Gguf) -> str:
    """The type of most bytes. Quantized weights are computed in bfloat16, which their scales fit."""
    sizes: dict[str, int] = {}
    for entry in gguf.tensors.values():
        sizes[entry.type.name] = sizes.get(entry.type.name, 0) + entry.stop - entry.start
    most = max(sizes, key=lambda name: sizes[name], default="BF16")
    return {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")


def _sizes_of_mlp(fields: GgufFields, kind: Architecture) -> Config:
    if kind.experts is None:
        return {"intermediate_size": fields.size("feed_forward_length")}
    count, chosen = fields.size("expert_count"), fields.size("expert_used_count")
    if kind.model_type == "mixtral":
        wide = fields.size("feed_forward_length")
        return {"intermediate_size": wide, "num_local_experts": count, "num_experts_per_tok": chosen}
    narrow = fields.size("expert_feed_forward_length")
    dense = [
        i
        for i in range(fields.size("block_count"))
        if f"blk.{i}.ffn_gate_inp.weight" not in fields.gguf.tensors
    ]
    return {
        "intermediate_size": fields.size("feed_forward_length", narrow),
        "moe_intermediate_size": narrow,
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
    }


def _biases(gguf: Gguf, kind: Architecture) -> Config:
    if kind.model_type in ("qwen2", "phi3", "mixtral"):
        return {}
    found = {"attention_bias": "blk.0.attn_q.bias" in gguf.tensors}
    if kind.model_type in ("llama", "smollm3"):
        found["mlp_bias"] = "blk.0.ffn_gate.bias" in gguf.tensors
    return found


def _rope(gguf: Gguf, fields: GgufFields, head_dim: int, context: int) -> Config:
    config: Config = {}
    rotated = fields.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    original = fields.size("rope.scaling.original_context_length", context)
    if all(name in gguf.tensors for name in PHI3_SCALING):
        short, long = (_floats(gguf, gguf.tensors[name]) for name in PHI3_SCALING)
        attention = fields.optional("rope.scaling.attn_factor", NUMBER)
        scaling: Config = {
            "rope_type": "longrope",
            "type": "longrope",
            "short_factor": short,
            "long_factor": long,
        }
        if attention is not None:
            scaling["attention_factor"] = attention
        return config | {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if "rope_freqs.weight" in gguf.tensors:
        factors = _floats(gguf, gguf.tensors["rope_freqs.weight"])
        return config | {"rope_scaling": _llama3(factors, fields.number("rope.freq_base", 10000.0), context)}
    kind, factor = fields.optional("rope.scaling.type", str), fields.number("rope.scaling.factor", 1.0)
    if kind in (None, "none") or factor == 1.0:
        return config
    if kind not in ("linear", "yarn"):
        raise gguf.error(f"{fields.prefix}.rope.scaling.type", f"is {kind!r}, which is not supported")
    scaling = {"rope_type": kind, "type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
        for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if (value := fields.optional(f"rope.scaling.{theirs}", NUMBER)) is not None:
                scaling[ours] = value
    return config | {"rope_scaling": scaling}


def _floats(gguf: Gguf, entry: GgufEntry) -> list[float]:
    if entry.type.name != "F32" or len(entry.shape) != 1:
        raise gguf.error(
            entry.name, f"is a {entry.type.name} tensor {list(entry.shape)}, not a list of F32 numbers"
        )
    return [shortest(value) for value in struct.unpack_from(f"<{entry.shape[0]}f", gguf.data, entry.start)]


def _llama3(factors: list[float], theta: float, context: int) -> Config:
    """Llama 3's settings if they give these factors, else the factors themselves as LongRoPE with one set of them."""
    for bands in LLAMA3_BANDS:
        settings = LLAMA3 | bands
        expected = llama3_factors(settings, theta, 2 * len(factors))
        if all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(factors, expected, strict=True)):
            return {"rope_type": "llama3", "type": "llama3", **settings}
    return {
        "rope_type": "longrope",
        "type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "factor": 1.0,
        "original_max_position_embeddings": context,
    }


def llama3_factors(settings: Mapping[str, Any], theta: float, dim: int) -> list[float]:
    """The factor by which the frequency of each pair of dimensions is divided."""
    original, factor = settings["original_max_position_embeddings"], settings["factor"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    factors = []
    for index in range(0, dim, 2):
        turns = original / (2 * math.pi * theta ** (index / dim))
        blend = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - blend) / factor + blend))
    return factors


def _of_family(kind: Architecture, fields: GgufFields, config: Config) -> Config:
    window = fields.optional("attention.sliding_window", int)
    match kind.model_type:
        case "llama" if window and kind is LLAMA:
            return {
                "model_type": "mistral",
                "architectures": ["MistralForCausalLM"],
                "sliding_window": window,
            }
        case "mixtral" | "phi3":
            return {"sliding_window": window or None}
        case "smollm3":
            return {"use_sliding_window": False, "no_rope_layer_interval": 4}
        case "gemma2" | "gemma3_text":
            return _gemma(kind, fields, config)
        case _:
            return {}


def _gemma(kind: Architecture, fields: GgufFields, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    large = layers == LARGE_GEMMAS[kind.model_type]
    own: Config = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": fields.size("attention.sliding_window", 4096),
        "layer_types": [
            "sliding_attention" if each else "full_attention" for each in _slides(kind, fields, layers)
        ],
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if large
        else config["head_dim"],
    }
    if kind.model_type == "gemma2":
        own["attn_logit_softcapping"] = fields.number("attn_logit_softcapping", 50.0)
        own["final_logit_softcapping"] = fields.number("final_logit_softcapping", 30.0)
    else:
        own["rope_local_base_freq"] = fields.number("rope.freq_base_swa", 10000.0)
        own["final_logit_softcapping"] = fields.optional("final_logit_softcapping", NUMBER)
    return own


def _slides(kind: Architecture, fields: GgufFields, layers: int) -> list[bool]:
    """Whether each layer has a sliding window: a Gemma 3 file without a window has none."""
    key = "attention.sliding_window_pattern"
    pattern = fields.optional(key, (int, list))
    if kind.model_type == "gemma3_text" and not fields.optional("attention.sliding_window", int):
        return [False] * layers
    if isinstance(pattern, list):
        return [bool(each) for each in pattern]
    every = fields.size(key, kind.window_every)
    return [(i + 1) % every != 0 for i in range(layers)]
