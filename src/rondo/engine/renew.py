"""A new version of the weights from a folder: read whole beside the old one, and only then put in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from rondo.base.errors import ModelError
from rondo.engine.sleep import Reload
from rondo.models import Decoder, ModelConfig


def read_version(model: Decoder, read: Reload, folder: Path) -> dict[str, Tensor]:
    """The parameters that `read` gives, if they are of a model like `model`."""
    try:
        fresh = read()
    except OSError as error:
        raise ModelError(f"cannot read {folder}: {error.strerror}.", param="path") from error
    if _shape(fresh.config) != _shape(model.config):
        raise ModelError(
            f"{folder} is another model than the one that is served: its config.json describes other layers or "
            "sizes. Start a server for it.",
            param="path",
        )
    return {name: parameter.data for name, parameter in fresh.named_parameters()}


def _shape(config: ModelConfig) -> ModelConfig:
    """What the weights depend on."""
    return replace(config, hf=None, eos_ids=(), bos_id=None, pad_id=None)
