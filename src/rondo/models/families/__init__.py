"""Model families, one short file each: parsing of `config.json` and tensor names. A family is imported, and torch with
it, on first use."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ModelError
from rondo.models.heads import scorer
from rondo.models.quantized import methods

if TYPE_CHECKING:
    from rondo.models.architecture import ModelConfig
    from rondo.models.files.slots import Slot

FAMILIES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
    "smollm3": "smollm",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "phi3": "phi",
    "olmo2": "olmo",
    "mixtral": "mixtral",
    "gpt_oss": "gpt_oss",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
}
"""`model_type` of a config.json -> name of the module that parses it."""


@dataclass(frozen=True)
class Family:
    parse: Callable[[Mapping[str, Any]], ModelConfig]
    slots: Callable[[ModelConfig], Iterable[Slot]]
    ignored: Callable[[ModelConfig], tuple[str, ...]] = lambda config: ()
    """Patterns of tensors in checkpoints of this family that the model does not use."""


def family_of(model_type: str) -> Family:
    family: Family = import_module(f"{__name__}.{_module_of(model_type)}").FAMILY
    return family


def _module_of(model_type: object) -> str:
    module = FAMILIES.get(str(model_type))
    if module is None:
        near = difflib.get_close_matches(str(model_type), FAMILIES, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(
            f"unknown architecture: model_type {model_type!r} in config.json.{hint} "
            f"Known: {', '.join(sorted(FAMILIES))}.",
            param="model_type",
        )
    return module


def check(hf: Mapping[str, Any]) -> None:
    """Raises if a `config.json` is not one of a supported model, as far as its plain values show."""
    if "model_type" not in hf:
        raise ModelError(
            "config.json has no 'model_type', so the architecture is unknown", param="model_type"
        )
    methods.parse(hf)
    _module_of(hf["model_type"])
    _check_sizes(hf)


def parse(hf: Mapping[str, Any]) -> ModelConfig:
    """Converts a Hugging Face `config.json` to a `ModelConfig`."""
    check(hf)
    try:
        config = replace(family_of(hf["model_type"]).parse(hf), quantization=methods.parse(hf))
        return scorer.scoring(config) if scorer.is_scorer(hf) else config
    except KeyError as missing:
        raise ModelError(
            f"config.json of a {hf['model_type']} model lacks {missing}", param=str(missing.args[0])
        ) from missing
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ModelError(
            f"config.json of a {hf['model_type']} model has a value that makes no sense: {error}"
        ) from error


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "sliding_window")
FLAGS = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"),
    *("norm_topk_prob", "rope_interleave"),
)
NUMBERS = (
    "rms_norm_eps",
    "rope_theta",
    "initializer_range",
    "routed_scaling_factor",
    "query_pre_attn_scalar",
)
LARGEST = sys.float_info.max
MOST_LAYERS = 4096
"""Far more than any model has; the limit rejects typing errors before a build of hours."""


def _check_sizes(hf: Mapping[str, Any]) -> None:
    """Validates numbers whose errors would otherwise appear far from their cause."""
    for key in (*SIZES, *OPTIONAL_SIZES):
        value = hf.get(key, 1)
        if value is None and key in OPTIONAL_SIZES:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(
                f"config.json of a {hf['model_type']} model: {key} is {value!r}, not a whole number above 0",
                param=key,
            )
    if hf.get("num_hidden_layers", 1) > MOST_LAYERS:
        raise ModelError(
            f"config.json of a {hf['model_type']} model: num_hidden_layers is {hf['num_hidden_layers']}, "
            f"more than the {MOST_LAYERS} that can be built",
            param="num_hidden_layers",
        )
    for key in FLAGS:
        if hf.get(key) not in (None, True, False):
            raise ModelError(f"config.json: {key} is {hf[key]!r}, neither true nor false", param=key)
    for key in NUMBERS:
        number = hf.get(key, 1.0)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= LARGEST:
            raise ModelError(f"config.json: {key} is {number!r}, not a number above 0", param=key)
    _check_token_ids(hf)
    heads, kv_heads = hf.get("num_attention_heads", 1), hf.get("num_key_value_heads") or 1
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
            param="num_key_value_heads",
        )


def _check_token_ids(hf: Mapping[str, Any]) -> None:
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        value = hf.get(key)
        ids = value if isinstance(value, list) and key == "eos_token_id" else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            raise ModelError(f"config.json: {key} is {value!r}, not a token id", param=key)
