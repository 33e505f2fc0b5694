"""Inside vLLM: a weight-transfer engine that loads a folder of safetensors by its path, or a version from a source.

vLLM calls `register` in each of its processes, by the entry point group `vllm.general_plugins`. For a path this file
needs nothing but vLLM's own dependencies, so that it also works in an environment without the rest of Rondo; sources
are fetched by Rondo's transports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "rondo"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def register() -> None:
    """May be called several times in one process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FolderEngine)


@dataclass
class InitInfo(WeightTransferInitInfo):
    """A folder needs no meeting point."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    path: str = ""
    version: int | None = None
    source: str = ""
    """Address of a version, as of `transports/source.py`; a segment may still be written."""


class FolderEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker reads the folder itself, all of it in one `update_weights`. Until its files are open nothing changes."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None: ...

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def shutdown(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class does, which then waits for an accelerator; a CPU has none."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        with whole_folder(update_info) as folder:
            self._load(folder)

    def _load(self, folder: Path) -> None:
        wanted = {name.replace(".base_layer.", ".") for name, _ in self.model.named_parameters()}
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(path, "pt")) for path in weight_files(folder)]
            initialize_layerwise_reload(self.model)
            loaded = self.model.load_weights(_tensors(files))
            finalize_layerwise_reload(self.model, self.model_config)
        if loaded is not None and wanted - loaded:
            raise ValueError(f"{folder} has no weights for {sorted(wanted - loaded)[:3]}")
        if self.device.type == "cpu":
            repack_tied_heads(self.model)


@contextmanager
def whole_folder(update: UpdateInfo) -> Iterator[Path]:
    """The folder of an update. A version from a source is complete, verified and locked until it is loaded."""
    if not update.source:
        yield Path(update.path)
        return
    try:
        from rondo.weights.transports.source import WeightSource, fetch
    except ImportError as error:
        raise ValueError(
            f"update_info.source needs Rondo in vLLM's environment ({error}): pip install --no-deps rondo-lab xxhash. "
            "update_info.path needs nothing."
        ) from error
    held = fetch(WeightSource.parse(update.source), update.version)
    try:
        yield held.folder
    finally:
        held.release()


def repack_tied_heads(model: nn.Module) -> None:
    """On a CPU a linear layer multiplies by a packed copy of its weights. A tied head is loaded through the embedding,
    so its copy must be packed again here."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            module.quant_method.process_weights_after_loading(module)


def weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        weight_map: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
        return [folder / name for name in sorted(set(weight_map.values()))]
    return [folder / SINGLE]


def _tensors(files: list[Any]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            yield name, file.get_tensor(name)
