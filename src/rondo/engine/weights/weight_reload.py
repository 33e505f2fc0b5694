"""Reading of a new weight version from a folder, complete before it replaces the old one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from rondo.base.errors import ModelError
from rondo.engine.weights.sleep import Reload
from rondo.models import Decoder, ModelConfig, parse, read_config
from rondo.models.files.checkpoint import check


@dataclass(frozen=True)
class StagedWeights:
    """A version that was read next to the weights in use; `reload` reads it again."""

    tensors: dict[str, Tensor]
    reload: Reload


def read_version(model: Decoder, read: Reload, folder: Path) -> dict[str, Tensor]:
    """The parameters of the model that `read` returns, if it has the architecture of `model`."""
    try:
        fresh = read()
    except OSError as error:
        raise ModelError(f"cannot read {folder}: {error.strerror}.", param="path") from error
    _check_same(folder, fresh.config, model.config)
    return {name: parameter.data for name, parameter in fresh.named_parameters()}


def check_version(folder: Path, served: ModelConfig) -> None:
    """Raises an error unless the folder has a complete model of the served architecture; reads only its config and
    headers."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder here, where the engine reads it.", param="path")
    check(folder)
    _check_same(folder, parse(read_config(folder)), served)


def _check_same(folder: Path, config: ModelConfig, served: ModelConfig) -> None:
    if config.quantization != served.quantization:
        raise ModelError(
            f"{folder} is {_kind(config)}, but the served weights are {_kind(served)}: use a folder with the "
            "same quantization.",
            param="path",
        )
    if _shape(config) != _shape(served):
        raise ModelError(
            f"{folder} is another model than the one that is served: its config.json describes other layers or "
            "sizes. Start a server for it.",
            param="path",
        )


def _kind(config: ModelConfig) -> str:
    if config.quantization is None:
        return "not quantized"
    return f"quantized ({config.quantization.method})"


def _shape(config: ModelConfig) -> ModelConfig:
    """The part of a config that the weights depend on."""
    return replace(config, hf=None, eos_ids=(), bos_id=None, pad_id=None)
