"""Reading of adapter weights from a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from rondo.base.errors import ConfigError, ModelError, NotFound
from rondo.models import Decoder
from rondo.models.adapters import read_adapter
from rondo.models.adapters.mixed import AdapterWeights, Sites
from rondo.models.adapters.tokenformer import Tokenformer


class AdapterReader:
    """Adapter reader of one model, usable from any thread. With `deterministic`, the result is bitwise equal to the
    learner's adapter."""

    def __init__(self, model: Decoder, max_rank: int, deterministic: bool = False) -> None:
        self.sites = Sites(model, as_learner=deterministic)
        self._config = model.config
        self._max_rank = max_rank

    def read(self, folder: Path) -> tuple[AdapterWeights, str]:
        """Returns the weights, and the checksum of the weights in effect."""
        if not folder.is_dir():
            raise NotFound(f"there is no adapter's folder {folder}.", param="lora_path")
        try:
            _, parts = read_adapter(self._shape, folder, max_rank=self._max_rank, device=self.sites.device)
        except OSError as error:
            raise ModelError(f"cannot read {folder}: {error.strerror}.") from error
        if self.sites.as_learner:
            _check_rows(folder, parts.values())
        served = AdapterWeights(self.sites, parts.items())
        tensors = served.tensors()
        if not all(bool(tensor.isfinite().all()) for _, tensor in tensors):
            raise ModelError(f"{folder}: its weights are not all finite (NaN or infinity): train it again.")
        return served, _checksum(tensors)

    @cached_property
    def _shape(self) -> Decoder:
        """The model without weights, because the weights of the real one may be asleep."""
        with torch.device("meta"):
            return Decoder(self._config)


def _check_rows(folder: Path, parts: Iterable[nn.Module]) -> None:
    """Raises an error for adapters whose result for a row depends on the other rows of the batch."""
    if any(isinstance(part, Tokenformer) for part in parts):
        raise ConfigError(
            f"{folder} is a Tokenformer, whose mixtures of products are torch's: their bits depend on how many rows "
            "there are. Take LoRA, or leave out deterministic.",
            param="deterministic",
        )


def _checksum(tensors: Iterable[tuple[str, Tensor]]) -> str:
    total = hashlib.sha256()
    for name, tensor in tensors:
        total.update(f"{name}{list(tensor.shape)}".encode())
        total.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
