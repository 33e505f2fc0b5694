"""From a model's name to an application that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from starlette.types import ASGIApp

from rondo.base import metrics
from rondo.engine.async_engine import AsyncEngine
from rondo.engine.config import EngineConfig
from rondo.engine.load import load_core
from rondo.engine.output import TextSource
from rondo.engine.speculate.make import check_tokenizer
from rondo.models.store import name_of, resolve
from rondo.server.app import create_app
from rondo.server.config import ServerConfig
from rondo.text.tokenizer import Tokenizer


def load_app(
    model: str | Path, engine: EngineConfig, server: ServerConfig
) -> tuple[ASGIApp, AsyncEngine, str]:
    """(the application, its engine, the name clients ask for). Stop the engine when the server is done."""
    folder = resolve(model)
    name = server.served_model_name or name_of(folder)
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    tokenizer = Tokenizer.load(folder)
    check_tokenizer(engine, tokenizer)
    core = load_core(folder, engine, tokenizer.eos_ids or None)
    running = AsyncEngine(core, cast(TextSource, tokenizer), model_name=name)
    metrics.registry.register(running.metrics)
    aliases = () if server.served_model_name else (str(model),)
    app = create_app(running, core.model.config, tokenizer, name, server, aliases, engine.pooling)
    return app, running, name
