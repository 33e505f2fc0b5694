"""Loading of an engine core from a model folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.runner.native import check_native
from rondo.models import load
from rondo.models.devices import device_named, torch_dtype


def load_core(
    folder: Path, config: EngineConfig, eos_ids: tuple[int, ...] | None = None, weight_version: int = 0
) -> EngineCore:
    """Loads the model, on several ranks if configured. `eos_ids` default to the model's own."""
    check_native(config)
    if config.tensor_parallel > 1:
        from rondo.engine.ranks.tp import lead

        return lead(folder, config, eos_ids, weight_version)
    device = device_named(config.device)
    kept = device.type == "cpu"  # other devices have no kernel for quantized weights
    read = partial(load, folder, torch_dtype(config.dtype), device, keep_quantized=kept)
    return EngineCore(read().eval(), config, eos_ids, weight_version, reload=read)
