"""From a model's folder to the engine that computes it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import torch

from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.runner.native import check_native
from rondo.models import load
from rondo.models.devices import device_named


def load_core(
    folder: Path, config: EngineConfig, eos_ids: tuple[int, ...] | None = None, weight_version: int = 0
) -> EngineCore:
    """`eos_ids` are the model's own by default."""
    check_native(config)
    if config.tensor_parallel > 1:
        from rondo.engine.ranks.tp import lead

        return lead(folder, config, eos_ids, weight_version)
    read = partial(load, folder, torch_dtype(config.dtype), device_named(config.device))
    return EngineCore(read().eval(), config, eos_ids, weight_version, reload=read)


def torch_dtype(name: str) -> torch.dtype | None:
    return None if name == "auto" else cast(torch.dtype, getattr(torch, name))
