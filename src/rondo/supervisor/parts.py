"""Parts of `rondo up`: the gateway, and the engines of each pool."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence

from rondo.base.errors import ConfigError
from rondo.supervisor.config import PoolConfig, UpConfig
from rondo.supervisor.part import Part

RONDO = (sys.executable, "-m", "rondo.cli")
GATEWAY = "gateway"


def make_parts(config: UpConfig, host: str, port: int, url: str, settings: Sequence[str]) -> list[Part]:
    """`settings` are flags for every part. Keys between the parts are new at each start, and in no command line."""
    api_key, admin_key = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    env = dict(os.environ) | {
        "RONDO_GATEWAY_ENGINE_KEY": api_key,
        "RONDO_SERVER_API_KEY": api_key,
        "RONDO_SERVER_ADMIN_KEY": admin_key,
        "PYTHONUNBUFFERED": "1",
    }
    engines = list(_engines(config, config.first_port or port + 1, env, settings))
    command = [
        *RONDO,
        GATEWAY,
        *(part.url for part in engines),
        *settings,
        f"--host={host}",
        f"--port={port}",
    ]
    return [Part(GATEWAY, command, env, url), *engines]


def _engines(config: UpConfig, port: int, env: dict[str, str], settings: Sequence[str]) -> Iterator[Part]:
    number = 0
    for pool in config.pools:
        for _ in range(pool.engines):
            port = _free_from(port)
            number += 1
            yield Part(
                f"engine-{number}",
                _engine_command(pool, port, settings),
                env,
                f"http://127.0.0.1:{port}",
                pool.model,
            )
            port += 1


def _free_from(port: int) -> int:
    for candidate in range(port, 65536):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    raise ConfigError(
        f"No port from {port} on is free for an engine: set up.first_port.", param="up.first_port"
    )


def _engine_command(pool: PoolConfig, port: int, settings: Sequence[str]) -> list[str]:
    own = [f"--{name}={value}" for name, value in pool.settings.items()]
    if pool.tensor_parallel > 1:
        own.append(f"--engine.tensor_parallel={pool.tensor_parallel}")
    return [*RONDO, "serve", pool.model, *settings, *own, "--server.host=127.0.0.1", f"--server.port={port}"]
