"""The one definition of each architecture, its Hugging Face import and export, and its adapters."""

from rondo.models.architecture import ModelConfig
from rondo.models.attend import Attend, Packed
from rondo.models.checkpoint import build, load, read_config, save, save_into
from rondo.models.decoder import Decoder
from rondo.models.families import FAMILIES, parse
from rondo.models.new import new

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
