"""Adapters whose weights are drawn at random, large enough to change what a model says."""

import shutil
from pathlib import Path
from typing import Any

import torch

from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import Decoder
from rondo.models.adapters import LoraSpec, attach_lora, detach, save_lora, trainable

NAMES = ["a", "b", "c", "d"]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, detokenize=False)


def write_lora(model: Decoder, folder: Path, seed: int = 0, **spec: Any) -> Path:
    attach_lora(model, LoraSpec(**{"r": 4, "targets": ("q_proj", "down_proj")} | spec))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable(model):
            parameter.normal_(0.0, 0.3, generator=draw)
    shutil.rmtree(folder, ignore_errors=True)
    save_lora(model, folder)
    detach(model)
    return folder


def write_loras(model: Decoder, folder: Path) -> Path:
    """One for each of NAMES."""
    for seed, name in enumerate(NAMES):
        write_lora(model, folder / name, seed)
    return folder


def core_with(model: Decoder, folder: Path, **settings: Any) -> EngineCore:
    settings = {"adapters_dir": str(folder), "max_num_seqs": 4, "block_size": 4} | settings
    return EngineCore(model, EngineConfig(**settings))


def truncate(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
