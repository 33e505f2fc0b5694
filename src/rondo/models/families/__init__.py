"""One short file a family: what its `config.json` means, and where its tensors go."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rondo.base.errors import ModelError
from rondo.models.architecture import ModelConfig
from rondo.models.mapping import Slot

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
"""`model_type` of a config.json -> the module here that reads it."""


@dataclass(frozen=True)
class Family:
    parse: Callable[[Mapping[str, Any]], ModelConfig]
    slots: Callable[[ModelConfig], Iterable[Slot]]
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that checkpoints of this family carry and the model does not have."""


def family_of(model_type: str) -> Family:
    module = FAMILIES.get(model_type)
    if module is None:
        near = difflib.get_close_matches(str(model_type), FAMILIES, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(
            f"unknown architecture: model_type {model_type!r} in config.json.{hint} Known: {', '.join(sorted(FAMILIES))}.",
            param="model_type",
        )
    family: Family = import_module(f"{__name__}.{module}").FAMILY
    return family


def parse(hf: Mapping[str, Any]) -> ModelConfig:
    """A Hugging Face `config.json` -> what the decoder is made of."""
    if "model_type" not in hf:
        raise ModelError("config.json has no 'model_type', so the architecture is unknown", param="model_type")
    if hf.get("quantization_config"):
        method = hf["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"config.json asks for quantized weights ({method}), which cannot be loaded; use the unquantized checkpoint",
            param="quantization_config",
        )
    try:
        return family_of(hf["model_type"]).parse(hf)
    except KeyError as missing:
        raise ModelError(
            f"config.json of a {hf['model_type']} model lacks {missing}", param=str(missing.args[0])
        ) from missing
