"""Settings shared by the HTTP servers: the engine server and the gateway. Torch-free."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from rondo.base.settings.config import Section


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


Several = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_one_or_several)]


class ListenConfig(Section):
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 is every interface")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    allow_public_without_key: bool = Field(
        False, description="whether the server may listen on a public address without API keys"
    )
    allowed_hosts: Several = Field(
        [],
        description="further names in the Host header of requests: on a loopback address other names than its own are "
        "refused, against DNS rebinding; * allows all",
    )
    drain_seconds: float = Field(30.0, ge=0, description="how long running requests may finish after SIGTERM")
    header_seconds: float = Field(10.0, gt=0, description="the longest time for the head of a request")
    max_connections: int | None = Field(
        None, ge=1, description="connections at a time; by default as many as the limit of open files allows"
    )
    max_connections_per_address: int | None = Field(
        None, ge=1, description="connections at a time from one address; by default without a limit"
    )
    body_seconds: float = Field(60.0, gt=0, description="the longest wait for the next part of a body")
    access_log: bool = Field(True, description="one line a request, without its text")
    otlp_traces_endpoint: str | None = Field(
        None, description="where spans go, as OTLP over HTTP: http://127.0.0.1:4318/v1/traces"
    )

    @property
    def guarded(self) -> bool:
        """Whether model routes need a key."""
        return False
