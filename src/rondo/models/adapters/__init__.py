"""Small sets of weights over a frozen base model: LoRA in PEFT's file format, and Tokenformer."""

from pathlib import Path

from rondo.base.errors import ModelError
from rondo.models.adapters.attached import Adapter, adapter_of, detach, trainable
from rondo.models.adapters.files import CONFIG, read_config
from rondo.models.adapters.lora import attach_lora, load_lora, merge, save_lora
from rondo.models.adapters.lora_config import LoraSpec
from rondo.models.adapters.tokenformer import (
    TokenformerSpec,
    attach_tokenformer,
    load_tokenformer,
    save_tokenformer,
)
from rondo.models.decoder import Decoder

__all__ = [
    "Adapter",
    "LoraSpec",
    "TokenformerSpec",
    "adapter_of",
    "attach_lora",
    "attach_tokenformer",
    "detach",
    "load_adapter",
    "load_lora",
    "load_tokenformer",
    "merge",
    "save_adapter",
    "save_lora",
    "save_tokenformer",
    "trainable",
]

LOADERS = {"LORA": load_lora, "TOKENFORMER": load_tokenformer}


def load_adapter(model: Decoder, folder: str | Path, *, train: bool = False) -> Adapter:
    """Attach whichever kind of adapter `folder` holds."""
    kind = read_config(Path(folder)).get("peft_type")
    if kind not in LOADERS:
        raise ModelError(
            f"{Path(folder) / CONFIG}: peft_type {kind!r} is not supported; supported: {', '.join(LOADERS)}",
            param="peft_type",
        )
    return LOADERS[kind](model, folder, train=train)


def save_adapter(model: Decoder, folder: str | Path) -> None:
    """Write whichever kind of adapter is attached."""
    adapter = adapter_of(model)
    if adapter is not None and isinstance(adapter.spec, TokenformerSpec):
        save_tokenformer(model, folder)
    else:
        save_lora(model, folder)
