"""Small sets of weights over a frozen base model: LoRA in PEFT's file format, and Tokenformer."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from rondo.base.errors import ModelError
from rondo.models.adapters.attached import AttachedAdapter, adapter_of, attach, detach, trainable
from rondo.models.adapters.files import CONFIG, read_config
from rondo.models.adapters.lora import attach_lora, load_lora, lora_size, merge, read_lora, save_lora
from rondo.models.adapters.lora_config import LoraSpec
from rondo.models.adapters.tokenformer import (
    TokenformerSpec,
    attach_tokenformer,
    load_tokenformer,
    read_tokenformer,
    save_tokenformer,
)
from rondo.models.decoder import Decoder

__all__ = [
    "CONFIG",
    "AttachedAdapter",
    "LoraSpec",
    "TokenformerSpec",
    "adapter_of",
    "attach_lora",
    "attach_tokenformer",
    "detach",
    "load_adapter",
    "load_lora",
    "load_tokenformer",
    "lora_size",
    "merge",
    "read_adapter",
    "save_adapter",
    "save_lora",
    "save_tokenformer",
    "trainable",
]

Reader = Callable[..., tuple[LoraSpec | TokenformerSpec, dict[str, nn.Module]]]

READERS: dict[str, Reader] = {"LORA": read_lora, "TOKENFORMER": read_tokenformer}


def read_adapter(
    model: Decoder,
    folder: str | Path,
    *,
    train: bool = False,
    max_rank: int | None = None,
    device: torch.device | None = None,
) -> tuple[LoraSpec | TokenformerSpec, dict[str, nn.Module]]:
    """Reads the adapter in `folder`, of either kind, as modules by the path of the module that each adds to. The model
    is used for its shapes only and stays unchanged; `device` defaults to the model's."""
    kind = read_config(Path(folder)).get("peft_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise ModelError(
            f"{Path(folder) / CONFIG}: peft_type {kind!r} is not supported; supported: {', '.join(READERS)}",
            param="peft_type",
        )
    return READERS[kind](model, folder, train=train, max_rank=max_rank, device=device)


def load_adapter(model: Decoder, folder: str | Path, *, train: bool = False) -> AttachedAdapter:
    """Attach the adapter in `folder`, of either kind."""
    spec, parts = read_adapter(model, folder, train=train)
    return attach(model, spec, parts, train=train)


def save_adapter(model: Decoder, folder: str | Path) -> None:
    """Write the attached adapter, of either kind."""
    adapter = adapter_of(model)
    if adapter is not None and isinstance(adapter.spec, TokenformerSpec):
        save_tokenformer(model, folder)
    else:
        save_lora(model, folder)
