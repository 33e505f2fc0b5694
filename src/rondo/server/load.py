"""Builds the application that serves a model, from its name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from starlette.types import ASGIApp

from rondo.base.errors import ConfigError
from rondo.base.lock import share
from rondo.base.storage.paths import path_of
from rondo.base.telemetry import metrics
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.tracing import check_traces
from rondo.client.engine import ServedEngine
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.load import load_core
from rondo.engine.entrypoints.output import TextSource
from rondo.engine.metrics.counters import RequestMetrics
from rondo.engine.speculate.make import check_tokenizer
from rondo.models import ModelConfig
from rondo.models.files.adapter_folder import resolve_adapter
from rondo.models.store import job_of, name_of, resolve
from rondo.server.app import create_app
from rondo.server.config import ServerConfig
from rondo.text.tokenizer import Tokenizer

log = get_logger("rondo.server")


def load_app(
    model: str | Path, engine: EngineConfig, server: ServerConfig
) -> tuple[ASGIApp, ServedEngine, str]:
    """(the application, its engine, the name clients ask for). Stop the engine when the server is done."""
    if server.otlp_traces_endpoint is not None:
        check_traces(server.otlp_traces_endpoint)
    folder = resolve(model)
    share(folder)  # `rondo model rm` and `rondo job rm` refuse a model that a server uses
    name, *aliases = server.served_model_name or _names(folder, str(model))
    tokenizer = _with_template(Tokenizer.load(folder), server.chat_template).called(name)
    adapters = _folders(server.adapters, (name, *aliases))
    load = _vllm if engine.backend == "vllm" else _native
    running, config, counts = load(folder, engine, tokenizer, name, adapters)
    metrics.registry.register(counts)
    log.info("loaded", extra={"model": name, "folder": str(folder)})
    events = running.cache_events if isinstance(running, AsyncEngine) else None
    app = create_app(running, config, tokenizer, name, server, aliases, engine.pooling, events)
    return app, running, name


def _names(folder: Path, given: str) -> list[str]:
    """The model's name, and other names that requests may use: a job's hash, and the name on the command line."""
    job = job_of(folder)
    return list(dict.fromkeys([name_of(folder), *([job.name] if job else []), given]))


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


def _folders(adapters: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Folders of the named adapters; those of the Hub are downloaded. A name of the model itself is refused:
    the adapter would be unreachable."""
    for name in names:
        if name in adapters:
            raise ConfigError(
                f"{name!r} is the name of the model itself: give the adapter another.",
                param="server.adapters",
            )
    return {name: str(resolve_adapter(place, f"server.adapters.{name}")) for name, place in adapters.items()}


def _with_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    """`template` is a file, or the template itself."""
    if template is None:
        return tokenizer
    if "{" in template and not os.path.lexists(template):
        return tokenizer.with_chat_template(template)
    try:
        file = path_of(template, "server.chat_template")
        return tokenizer.with_chat_template(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the chat template {template} cannot be read: {reason}.", param="server.chat_template"
        ) from error
