"""The two files of an adapter folder, in PEFT's layout."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo.base.errors import ModelError
from rondo.base.storage.files import atomic_dir, parse_json
from rondo.models.files import safetensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT wraps the model twice, which adds this prefix to tensor names."""


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder} has no {CONFIG}; is it an adapter's folder?")
    config = parse_json(path.read_bytes(), path)
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a JSON object")
    return config


def check_rank(folder: Path, rank: int, most: int | None) -> None:
    """Raises if the rank exceeds the limit, before any tensor is read."""
    if most is not None and rank > most:
        raise ModelError(
            f"{folder / CONFIG}: its rank is {rank}, but at most {most} is allowed here "
            "(engine.max_adapter_rank). Raise that, or train it with a lower rank.",
            param="r",
        )


def read_tensors(
    folder: Path, expected: Mapping[str, tuple[int, ...]], device: torch.device
) -> dict[str, Tensor]:
    """The expected tensors and no others, in the file's dtypes, copied into memory of their own."""
    path = folder / TENSORS
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").exists()
        hint = (
            "adapter_model.bin is a pickle, which is not loaded; convert it" if pickled else "fetch it again"
        )
        raise ModelError(f"{folder} has no {TENSORS}; {hint}")
    stored = safetensors.SafetensorsFile(path).tensors
    different = safetensors.differences(expected, stored)
    if different:
        raise ModelError(f"{path} does not fit its {CONFIG} and this base model. {different}")
    tensors = {}
    for name, source in stored.items():
        tensors[name] = torch.empty(source.shape, dtype=source.dtype, device=device)
        source.read_into(tensors[name])
    return tensors


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes the folder atomically."""
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_dir(folder, needed=sum(tensor.nbytes for tensor in ready.values())) as partial:
        (partial / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
        save_file(ready, partial / TENSORS, metadata={"format": "pt"})
        shutil.copymode(partial / CONFIG, partial / TENSORS)  # save_file: mode 0600
