"""The one definition of each architecture, its Hugging Face import and export, and its adapters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rondo.models.architecture import ModelConfig
    from rondo.models.attend import Attend, Packed
    from rondo.models.checkpoint import build, load, save, save_into
    from rondo.models.decoder import Decoder
    from rondo.models.families import FAMILIES, parse
    from rondo.models.fresh import new
    from rondo.models.headers import read_config

__all__ = [
    "FAMILIES",
    "Attend",
    "Decoder",
    "ModelConfig",
    "Packed",
    "build",
    "load",
    "new",
    "parse",
    "read_config",
    "save",
    "save_into",
]

_EXPORTS = {
    "FAMILIES": "families",
    "Attend": "attend",
    "Decoder": "decoder",
    "ModelConfig": "architecture",
    "Packed": "attend",
    "build": "checkpoint",
    "load": "checkpoint",
    "new": "fresh",
    "parse": "families",
    "read_config": "headers",
    "save": "checkpoint",
    "save_into": "checkpoint",
}
"""Imported when first asked for: naming and listing models must not wait for torch."""


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rondo.models' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"rondo.models.{_EXPORTS[name]}"), name)
