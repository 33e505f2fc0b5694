"""From a model's name to an application that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from starlette.types import ASGIApp

from rondo.base import metrics
from rondo.base.errors import ConfigError
from rondo.client.engine import ServedEngine
from rondo.engine.async_engine import AsyncEngine
from rondo.engine.config import EngineConfig
from rondo.engine.load import load_core
from rondo.engine.metrics import RequestMetrics
from rondo.engine.output import TextSource
from rondo.engine.speculate.make import check_tokenizer
from rondo.models import ModelConfig
from rondo.models.store import name_of, resolve
from rondo.server.app import create_app
from rondo.server.config import ServerConfig
from rondo.text.tokenizer import Tokenizer


def load_app(
    model: str | Path, engine: EngineConfig, server: ServerConfig
) -> tuple[ASGIApp, ServedEngine, str]:
    """(the application, its engine, the name clients ask for). Stop the engine when the server is done."""
    folder = resolve(model)
    name, *aliases = server.served_model_name or (name_of(folder), str(model))
    tokenizer = _with_template(Tokenizer.load(folder), server.chat_template)
    load = _vllm if engine.backend == "vllm" else _native
    running, config, counts = load(folder, engine, tokenizer, name, server.adapters)
    metrics.registry.register(counts)
    return create_app(running, config, tokenizer, name, server, aliases, engine.pooling), running, name


def _native(
    folder: Path, engine: EngineConfig, tokenizer: Tokenizer, name: str, adapters: Mapping[str, str]
) -> tuple[ServedEngine, ModelConfig, RequestMetrics]:
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    check_tokenizer(engine, tokenizer)
    core = load_core(folder, engine, tokenizer.eos_ids or None)
    for adapter, place in adapters.items():
        core.load_adapter(adapter, place)
    running = AsyncEngine(core, cast(TextSource, tokenizer), model_name=name)
    return running, core.model.config, running.metrics


def _vllm(
    folder: Path, engine: EngineConfig, tokenizer: Tokenizer, name: str, adapters: Mapping[str, str]
) -> tuple[ServedEngine, ModelConfig, RequestMetrics]:
    from rondo.engine.vllm.load import load_vllm

    running = load_vllm(
        folder, engine, tokenizer.eos_ids or None, cast(TextSource, tokenizer), name, adapters
    )
    return running, running.model, running.metrics


def _with_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    """`template` is a file, or the template itself."""
    if template is None:
        return tokenizer
    try:
        return tokenizer.with_chat_template(Path(template).expanduser().read_text("utf-8"))
    except OSError as error:
        if "{" in template:
            return tokenizer.with_chat_template(template)
        raise ConfigError(
            f"the chat template {template} cannot be read: {error.strerror}.", param="server.chat_template"
        ) from error
