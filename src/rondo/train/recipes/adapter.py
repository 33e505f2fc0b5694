"""Training an adapter over a base that stays as it is: putting it on, and what the job leaves."""

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
    merge,
    save_adapter,
)
from rondo.models.heads.scorer import check_writes
from rondo.train.config import AdapterConfig, Kind


def check(kind: Kind, config: AdapterConfig, model: ModelConfig) -> None:
    """What a recipe can make of a model with this adapter, before there is any."""
    if kind != "reward":
        check_writes(model)
    elif config.kind == "tokenformer" or (config.kind == "lora" and model.quantization is not None):
        raise ConfigError(
            "a reward model is exported as one model, so its training must be merged into it: train full weights, or a "
            "LoRA over unquantized weights",
            param="train.adapter.kind",
        )


def put_on(model: Decoder, config: AdapterConfig, *, seed: int, base: str) -> None:
    """A fresh adapter, with which the model computes what it did; `base` is the folder that the adapter's
    file names as its base, where PEFT loads it from."""
    if config.kind == "lora":
        targets = config.targets if isinstance(config.targets, str) else tuple(config.targets)
        attach_lora(model, LoraSpec(config.r, config.alpha, targets, base=base), seed=seed)
        if model.config.scores:
            model.head.out.weight.requires_grad_(True)
    elif config.kind == "tokenformer":
        attach_tokenformer(model, TokenformerSpec(config.r, config.heads, base=base), seed=seed)


def leave(model: Decoder, config: AdapterConfig, folder: Path) -> bool:
    """Writes the adapter alone into `folder`, and merges it into the model if that can be done: says whether it was.
    A reward model's is of no use without its head, and is only merged."""
    if not model.config.scores:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed before it was done
        save_adapter(model, folder)
    if config.kind != "lora" or model.config.quantization is not None:
        return False
    merge(model)
    return True
