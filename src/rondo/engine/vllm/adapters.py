"""Adapters served by vLLM: their names in Rondo, and the versions behind them in vLLM."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rondo.base.errors import ConfigError, InvalidRequest, NotFound, Overloaded
from rondo.base.storage.paths import path_of
from rondo.engine.config import EngineConfig
from rondo.engine.vllm.backend import Backend, VllmAdapter
from rondo.models.adapters.files import read_config


class VllmAdapters:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._current: dict[str, VllmAdapter] = {}
        self._loads = 0

    def names(self) -> list[str]:
        return sorted(self._current)

    def __contains__(self, name: object) -> bool:
        return name in self._current

    def find(self, name: str | None) -> VllmAdapter | None:
        if name is None:
            return None
        adapter = self._current.get(name)
        if adapter is None:
            raise no_adapter(name)
        return adapter

    def register_initial(self, name: str, path: str) -> VllmAdapter:
        """Registers an adapter that vLLM loads at its start."""
        self._check(name, replace=False)
        self._current[name] = self._next(name, _lora_folder(path))
        return self._current[name]

    async def load(self, backend: Backend, name: str, path: str, replace: bool) -> None:
        """Loads an adapter. If vLLM refuses the new version, the old one stays in place."""
        self._check(name, replace)
        adapter = self._next(name, await asyncio.to_thread(_lora_folder, path))
        await backend.load_adapter(adapter)
        before = self._current.get(name)
        self._current[name] = adapter
        if before is not None:
            await backend.unload_adapter(before)

    async def unload(self, backend: Backend, name: str) -> None:
        adapter = self._current.pop(name, None)
        if adapter is None:
            raise no_adapter(name)
        await backend.unload_adapter(adapter)

    def _next(self, name: str, folder: Path) -> VllmAdapter:
        self._loads += 1
        return VllmAdapter(name, str(folder), self._loads)

    def _check(self, name: str, replace: bool) -> None:
        if not self._config.vllm.adapters:
            raise ConfigError(
                "this vLLM was started without adapters: start it with --engine.vllm.adapters=true.",
                param="vllm.adapters",
            )
        if not name or "@" in name:
            raise InvalidRequest("the adapter needs a name, one without '@'.", param="lora_name")
        if name in self._current and not replace:
            raise InvalidRequest(
                f"The lora adapter {name!r} has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        if name not in self._current and len(self._current) >= self._config.max_loaded_adapters:
            raise Overloaded(
                f"{len(self._current)} adapters are loaded, all that may be (engine.max_loaded_adapters): unload one.",
                code="adapters_busy",
            )


def _lora_folder(path: str) -> Path:
    folder = path_of(path, "lora_path").absolute()
    kind = read_config(folder).get("peft_type")
    if kind != "LORA":
        raise InvalidRequest(f"vLLM serves LoRA adapters, and {folder} is {kind!r}.", param="lora_path")
    return folder


def no_adapter(name: str) -> NotFound:
    return NotFound(
        f"the adapter {name!r} does not exist here. Load it with load_adapter.",
        param="adapter",
        code="model_not_found",
    )
