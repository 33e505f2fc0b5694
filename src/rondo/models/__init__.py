"""The one definition of each architecture, its Hugging Face import and export, and its adapters."""

from typing import TYPE_CHECKING

from rondo.base.lazy import lazy

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

__getattr__ = lazy(
    __name__,
    {
        "FAMILIES": ".families",
        "Attend": ".attend",
        "Decoder": ".decoder",
        "ModelConfig": ".architecture",
        "Packed": ".attend",
        "build": ".checkpoint",
        "load": ".checkpoint",
        "new": ".fresh",
        "parse": ".families",
        "read_config": ".headers",
        "save": ".checkpoint",
        "save_into": ".checkpoint",
    },
)
"""Naming and listing models must not wait for torch."""
