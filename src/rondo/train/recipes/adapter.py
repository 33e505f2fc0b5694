"""Training of an adapter over a frozen base: attachment and export."""

from __future__ import annotations

import shutil
from pathlib import Path

from rondo.base.errors import ConfigError
from rondo.models import Decoder, ModelConfig
from rondo.models.adapters import (
    LoraSpec,
    TokenformerSpec,
    attach_lora,
    attach_tokenformer,
    lora_size,
    merge,
    save_adapter,
    trainable,
)
from rondo.models.files.checkpoint import build
from rondo.models.heads.scorer import check_writes, scoring
from rondo.train.config import AdapterConfig, Kind


def check(kind: Kind, config: AdapterConfig, model: ModelConfig) -> None:
    """Raises if a recipe does not support the model with this adapter, before a model is loaded."""
    if config.quantize_base != "none" and (kind == "reward" or model.quantization is not None):
        what = "a reward model" if kind == "reward" else f"weights in {model.quantization.method}"  # type: ignore[union-attr]
        raise ConfigError(
            f"adapter.quantize_base: {what} cannot be quantized to nf4 for training. Leave it at none.",
            param="train.adapter.quantize_base",
        )
    if kind != "reward":
        check_writes(model)
    elif config.kind == "tokenformer" or (config.kind == "lora" and model.quantization is not None):
        raise ConfigError(
            "a reward model is exported as one model, so its training must be merged into it: train full weights, or a "
            "LoRA over unquantized weights",
            param="train.adapter.kind",
        )


def sizes(kind: Kind, config: AdapterConfig, shape: ModelConfig) -> tuple[int, int]:
    """Parameters that a job trains, and all parameters, from the shapes only."""
    model = build(scoring(shape) if kind == "reward" else shape)
    total = sum(parameter.numel() for parameter in model.parameters())
    if config.kind == "none":
        return total, total
    if config.kind == "lora":
        trained = lora_size(model, _lora_spec(config))
        trained += model.head.out.weight.numel() if model.config.scores else 0
    else:
        put_on(model, config, seed=0, base="")
        trained = sum(parameter.numel() for parameter in trainable(model))
    return trained, total + trained


def _lora_spec(config: AdapterConfig, base: str | None = None) -> LoraSpec:
    targets = config.targets if isinstance(config.targets, str) else tuple(config.targets)
    return LoraSpec(config.r, config.alpha, targets, base=base)


def put_on(model: Decoder, config: AdapterConfig, *, seed: int, base: str) -> None:
    """Attaches a new adapter, which does not change the model's output yet; `base` is the base folder that the
    adapter's file names, from which PEFT loads it.
    """
    if config.kind == "lora":
        attach_lora(model, _lora_spec(config, base), seed=seed)
        if model.config.scores:
            model.head.out.weight.requires_grad_(True)
    elif config.kind == "tokenformer":
        attach_tokenformer(model, TokenformerSpec(config.r, config.heads, base=base), seed=seed)


def leave(model: Decoder, config: AdapterConfig, folder: Path) -> bool:
    """Writes the adapter alone into `folder`, merges it into the model if possible, and returns whether it was merged.
    A reward model's adapter is unusable without its head, and is only merged.
    """
    if not model.config.scores:
        shutil.rmtree(folder, ignore_errors=True)  # remains of a killed process
        save_adapter(model, folder)
    if config.quantize_base != "none":
        return True  # merged while it is written
    if config.kind != "lora" or model.config.quantization is not None:
        return False
    merge(model)
    return True
