"""Settings of `rondo up`. Torch-free."""

from __future__ import annotations

from pydantic import Field

from rondo.base.settings.config import Section


class PoolConfig(Section):
    """Engines that serve one model."""

    model: str = Field("demo", min_length=1, description="model of the pool: its name, folder or job")
    engines: int = Field(1, ge=1, le=64, description="number of engines")
    tensor_parallel: int = Field(1, ge=1, description="ranks of each engine")
    settings: dict[str, str] = Field({}, description="further settings of the engines, by key")


class UpConfig(Section):
    pools: list[PoolConfig] = Field([], description="pools of engines to start")
    first_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="port of the first engine, by default the gateway's plus one; ports in use are left out",
    )
    restart_seconds: float = Field(
        0.5, gt=0, description="time before the first restart of a part; doubles with each failure in a row"
    )
    longest_restart_seconds: float = Field(30.0, gt=0, description="longest time before a restart")
    stop_seconds: float = Field(
        35.0, gt=0, description="time in which a part may end after SIGTERM before it is killed"
    )
    log_bytes: int = Field(10 << 20, ge=4096, description="size at which a log file is rotated")
    log_files: int = Field(3, ge=0, description="rotated log files kept per part")
