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
    on_demand: bool = Field(
        True, description="start engines for further models of this machine with the first request for them"
    )
    memory: int | None = Field(
        None,
        ge=1,
        description="memory budget of all engines in bytes; default: up.memory_share of the device",
    )
    memory_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="share of the device's memory, or of the control group's limit, as the budget of all engines",
    )
    idle_seconds: float = Field(
        600.0, gt=0, description="time without a request after which an engine on demand ends"
    )
    load_seconds: float = Field(
        300.0, gt=0, description="longest time that a request waits for its model to load"
    )
    start_seconds: float = Field(
        900.0, gt=0, description="time in which an engine on demand must be ready after its start"
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
