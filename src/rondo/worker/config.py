"""Settings of a worker. Torch-free."""

from __future__ import annotations

from pydantic import Field

from rondo.base.settings.config import Section


class WorkerConfig(Section):
    gateway: str | None = Field(
        None,
        min_length=1,
        description="URL of the gateway whose queued requests the engine executes; without one, none",
    )
    key: str | None = Field(None, min_length=1, description="API key for the gateway, with the role worker")
    engine: str | None = Field(
        None, min_length=1, description="URL of the engine of `rondo worker`: any OpenAI-compatible server"
    )
    engine_key: str | None = Field(None, min_length=1, description="API key of that engine")
    name: str | None = Field(
        None, min_length=1, description="name of the worker; default: host and process id"
    )
    shape: str | None = Field(
        None,
        min_length=1,
        description="folder or config.json of the engine's model, for the FLOPs of results of `rondo worker`",
    )
    concurrency: int = Field(256, ge=1, description="maximum number of requests in the engine at a time")
    wait_seconds: float = Field(15.0, gt=0, description="duration of a long poll for requests")
    request_seconds: float = Field(
        1800.0, gt=0, description="longest time of one request in the engine; then it is attempted again"
    )
    drain_seconds: float = Field(
        10.0, ge=0, description="time after SIGTERM in which requests may finish before they are handed back"
    )
    verify_tls: bool = Field(True, description="check the certificate of the gateway")
