"""Runs the gateway on its port."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from rondo.base.errors import ConfigError
from rondo.base.storage.home import admin_key_file
from rondo.control.keys import Keys
from rondo.control.store.store import Store
from rondo.gateway.app import Gateway
from rondo.gateway.config import GatewayConfig
from rondo.web.run import make_server, raise_descriptor_limit

COLLECTION = (10_000, 20, 20)
SWITCH_SECONDS = 0.0005


def run_gateway(config: GatewayConfig, listener: socket.socket, on_start: Callable[[], None]) -> None:
    """Blocks until a signal ends the gateway."""
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(_serve(config, listener, on_start))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed (extra `fast`)."""
    try:
        return cast(Callable[[], asyncio.AbstractEventLoop], import_module("uvloop").new_event_loop)
    except ImportError:
        return None


async def _serve(config: GatewayConfig, listener: socket.socket, on_start: Callable[[], None]) -> None:
    store = Store()
    try:
        write_first_key(store)
        gateway = Gateway(config, store)
        try:
            server = make_server(gateway.app, config, gateway)
            _set_tls(server.config, config)
            _limit_pauses()
            asyncio.get_running_loop().call_soon(on_start)
            await server.serve(sockets=[listener])
        finally:
            await gateway.close()
    finally:
        store.close()


def _limit_pauses() -> None:
    """Fewer collections, and shorter turns of the store's threads, so that neither stops the event loop for long.
    Python's default turn is 5 ms."""
    gc.freeze()
    gc.set_threshold(*COLLECTION)
    sys.setswitchinterval(SWITCH_SECONDS)


def write_first_key(store: Store) -> Path | None:
    """Creates an admin key in a new store; its file is readable by the owner alone."""
    text = Keys(store).make_first().result()
    if text is None:
        return None
    file = admin_key_file()
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as opened:
        os.fchmod(handle, 0o600)
        opened.write(text + "\n")
    return file


def _set_tls(server: object, config: GatewayConfig) -> None:
    if config.tls_certificate is None or config.tls_key is None:
        return
    for name, path in (("tls_certificate", config.tls_certificate), ("tls_key", config.tls_key)):
        if not Path(path).is_file():
            raise ConfigError(f"gateway.{name}: there is no file {path}.", param=f"gateway.{name}")
    server.ssl_certfile, server.ssl_keyfile = config.tls_certificate, config.tls_key  # type: ignore[attr-defined]
