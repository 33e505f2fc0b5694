"""Parts of `rondo up`: the gateway, the engines of each pool, and engines on demand."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.supervisor.calls import EngineKeys
from rondo.supervisor.catalog import Loadable, MemoryNeed
from rondo.supervisor.config import PoolConfig, UpConfig
from rondo.supervisor.part import Part

RONDO = (sys.executable, "-m", "rondo.cli")
GATEWAY = "gateway"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


def new_keys() -> EngineKeys:
    """Keys between the parts are new at each start, and in no command line."""
    return EngineKeys(secrets.token_urlsafe(24), secrets.token_urlsafe(24))


@dataclass(frozen=True)
class PartMaker:
    """Commands and environments of the parts. `settings` are flags for every part, `env` is of the gateway alone."""

    config: UpConfig
    host: str
    port: int
    url: str
    settings: Sequence[str]
    keys: EngineKeys
    env: Mapping[str, str]

    @property
    def first_port(self) -> int:
        return self.config.first_port or self.port + 1

    def parts(self) -> list[Part]:
        """The gateway, and the engines of the pools."""
        engines = list(self._engines())
        command = [
            *RONDO,
            GATEWAY,
            *(part.url for part in engines),
            *self.settings,
            f"--host={self.host}",
            f"--port={self.port}",
        ]
        env = os.environ | self.env | {"RONDO_GATEWAY_ENGINE_KEY": self.keys.api, **UNBUFFERED}
        return [Part(GATEWAY, command, env, self.url), *engines]

    def on_demand(self, model: Loadable, need: MemoryNeed, others: Sequence[Part]) -> Part:
        """An engine for the model; `others` are running parts, whose ports are in use."""
        port = _free_from(self.first_port, {part.url.rpartition(":")[2] for part in others})
        command = [
            *(*RONDO, "serve", model.source, *self.settings, *need.flags),
            f"--server.served_model_name={json.dumps(model.names)}",
            *("--server.host=127.0.0.1", f"--server.port={port}"),
        ]
        url = f"http://127.0.0.1:{port}"
        return Part(part_name(model.name), command, self._engine_env, url, model.name, restarted=False)

    def _engines(self) -> Iterator[Part]:
        port, number = self.first_port, 0
        for pool in self.config.pools:
            for _ in range(pool.engines):
                port = _free_from(port)
                number += 1
                command, url = _engine_command(pool, port, self.settings), f"http://127.0.0.1:{port}"
                yield Part(f"engine-{number}", command, self._engine_env, url, pool.model)
                port += 1

    @property
    def _engine_env(self) -> Mapping[str, str]:
        keys = {"RONDO_SERVER_API_KEY": self.keys.api, "RONDO_SERVER_ADMIN_KEY": self.keys.admin}
        worker = {
            "RONDO_WORKER_GATEWAY": self.url,
            "RONDO_WORKER_KEY": self.keys.api,
            # The certificate is the gateway's own.
            "RONDO_WORKER_VERIFY_TLS": str(not self.url.startswith("https:")).lower(),
        }
        return os.environ | keys | worker | UNBUFFERED


def part_name(model: str) -> str:
    """Name of an engine on demand, which is also the name of its log."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40]
    if plain != model:
        plain += "-" + hashlib.sha256(model.encode()).hexdigest()[:6]
    return f"model-{plain}"


def _free_from(port: int, taken: Container[str] = ()) -> int:
    for candidate in range(port, 65536):
        if str(candidate) in taken:
            continue
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
