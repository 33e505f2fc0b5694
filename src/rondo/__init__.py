"""Rondo: pretrain, fine-tune, tune with reinforcement learning and serve language models in one loop."""

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
