"""Settings shared by the HTTP servers: the engine server and the gateway. Torch-free."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import BeforeValidator, Field

from rondo.base.settings.config import Section


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


Several = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_one_or_several)]


class ListenConfig(Section):
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 is every interface")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    allow_public_without_key: bool = Field(False, description="listen on a public address without an API key")
    allowed_hosts: Several = Field(
        [],
        description="further valid names in the Host header; on a loopback address all others are refused, against DNS "
        "rebinding; * allows all",
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="seconds that running requests have to finish after SIGTERM"
    )
    header_seconds: float = Field(
        10.0, gt=0, description="seconds in which the head of a request must arrive"
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="maximum number of connections; default: as many as the limit of open files allows",
    )
    max_connections_per_address: int | None = Field(
        None, ge=1, description="maximum number of connections per address; default: no limit"
    )
    body_seconds: float = Field(60.0, gt=0, description="seconds to wait for the next part of a request body")
    access_log: bool = Field(True, description="log one line per request, without its text")
    otlp_traces_endpoint: str | None = Field(
        None, description="OTLP/HTTP endpoint for traces (extra otel): http://127.0.0.1:4318/v1/traces"
    )

    @property
    def section(self) -> str:
        """Name of these settings, for errors."""
        return "server"

    @property
    def guarded(self) -> bool:
        """Whether model routes need a key."""
        return False

    @property
    def descriptors(self) -> int:
        """Open files that a request may need."""
        return 1


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or a name, is this machine's own by definition."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
