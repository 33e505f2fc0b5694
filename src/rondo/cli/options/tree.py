"""The whole config tree, put together from each package's part, and the flags that set it."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from rondo.base.errors import ConfigError
from rondo.base.settings.config import Loaded, Section, load, split_flags
from rondo.base.settings.config_keys import SettingKey, keys_of
from rondo.base.storage.home import home
from rondo.base.storage.paths import path_of
from rondo.base.telemetry.log import LogConfig, setup
from rondo.engine.config import EngineConfig
from rondo.gateway.config import GatewayConfig
from rondo.rl.config import RlConfig
from rondo.server.config import ServerConfig
from rondo.supervisor.config import UpConfig
from rondo.train.config import TrainConfig
from rondo.worker.config import WorkerConfig


class RondoConfig(Section):
    engine: EngineConfig = Field(EngineConfig(), description="inference")
    server: ServerConfig = Field(ServerConfig(), description="the HTTP server")
    gateway: GatewayConfig = Field(GatewayConfig(), description="the gateway in front of engines")
    up: UpConfig = Field(UpConfig(), description="the gateway and engines that `rondo up` supervises")
    worker: WorkerConfig = Field(
        WorkerConfig(), description="the worker that executes queued requests of a gateway"
    )
    train: TrainConfig = Field(TrainConfig(), description="pretraining and fine-tuning")
    rl: RlConfig = Field(RlConfig(), description="reinforcement learning")
    log: LogConfig = Field(LogConfig(), description="logs")


@functools.cache
def setting_keys() -> Mapping[str, SettingKey]:
    """Every key of the tree by dotted path, sections included."""
    return keys_of(RondoConfig)


@dataclass(frozen=True)
class CommandLine:
    config: Loaded[RondoConfig]
    rest: list[str]
    """Remaining arguments for the verb: its own flags and positional arguments, in order."""


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Takes `--config FILE` and settings (`--train.lr=3e-4`) out of `argv`, loads the tree, starts logs."""
    file, argv = _config_file(list(argv))
    flags, rest = split_flags(RondoConfig, argv)
    config = load(RondoConfig, file, flags=flags)
    setup(config.tree.log.format, config.tree.log.level)
    return CommandLine(config, rest)


def _config_file(argv: list[str]) -> tuple[Path | None, list[str]]:
    """`--config`, else `RONDO_CONFIG`, else `config.toml` in RONDO_HOME if it is there."""
    rest: list[str] = []
    chosen: str | None = os.environ.get("RONDO_CONFIG") or None
    while argv:
        token = argv.pop(0)
        if token == "--":
            rest += [token, *argv]
            break
        if token == "--config":
            if not argv:
                raise ConfigError("The flag --config needs a file: --config FILE.")
            chosen = argv.pop(0)
        elif token.startswith("--config="):
            chosen = token.partition("=")[2]
        else:
            rest.append(token)
    if chosen is not None:
        return path_of(chosen, "--config"), rest
    usual = home() / "config.toml"
    return (usual if usual.is_file() else None), rest
