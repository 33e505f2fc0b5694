"""Rondo: pretrain, fine-tune, tune with reinforcement learning and serve language models in one loop."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rondo.client.http import AsyncClient, Client
    from rondo.client.types import SamplingParams
    from rondo.engine.llm import LLM

__all__ = ["LLM", "AsyncClient", "Client", "SamplingParams", "__version__"]

__version__ = "0.1.0"

_EXPORTS = {
    "AsyncClient": "rondo.client.http",
    "Client": "rondo.client.http",
    "LLM": "rondo.engine.llm",
    "SamplingParams": "rondo.client.types",
}
"""Imported when first asked for: `import rondo` itself costs nothing."""


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rondo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_EXPORTS[name]), name)
