"""Validation of a config for the native engine."""

from __future__ import annotations

from rondo.base.errors import ConfigError
from rondo.engine.config import EngineConfig, VllmConfig


def check_native(config: EngineConfig) -> None:
    if config.backend != "native":
        raise ConfigError(
            f"backend is {config.backend}, which `rondo serve` starts; all else computes with Rondo's own engine. "
            "Set backend to native.",
            param="backend",
        )
    for name, value in config.vllm:
        if value != VllmConfig.model_fields[name].default:
            raise ConfigError(
                f"vllm.{name} is set, but backend is native: set backend to vllm.", param=f"vllm.{name}"
            )
