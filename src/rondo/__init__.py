"""Rondo: pretrain, fine-tune, tune with reinforcement learning and serve language models in one loop."""

from typing import TYPE_CHECKING

from rondo.base.lazy import lazy
from rondo.base.threads import yield_soon

if TYPE_CHECKING:
    from rondo.client.http import AsyncClient, Client
    from rondo.client.structured import StructuredOutputsParams
    from rondo.client.types import SamplingParams
    from rondo.engine.entrypoints.llm import LLM

__all__ = [
    "LLM",
    "AsyncClient",
    "Client",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

__version__ = "0.1.0"

yield_soon()

__getattr__ = lazy(
    __name__,
    {
        "AsyncClient": ".client.http",
        "Client": ".client.http",
        "LLM": ".engine.entrypoints.llm",
        "SamplingParams": ".client.types",
        "StructuredOutputsParams": ".client.structured",
    },
)
"""`import rondo` itself costs nothing."""
