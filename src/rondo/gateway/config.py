"""Settings of the gateway. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.control.config import RouterConfig
from rondo.web.config import ListenConfig, Several, is_loopback


class GatewayConfig(ListenConfig):
    engines: Several = Field([], description="URLs of engines, such as http://127.0.0.1:8001; more by API")
    engine_key: str | None = Field(
        None, min_length=1, description="key that the gateway sends to engines, as API key and as admin key"
    )
    keys: Literal["auto", "required", "optional"] = Field(
        "auto",
        description="whether requests need an API key; auto: not on a loopback address. Without a key a request has "
        "an admin's rights",
    )
    cors_origins: Several = Field(
        [], description="origins of web pages that may call the API from a browser; * allows all"
    )
    tls_certificate: str | None = Field(None, description="PEM file of the certificate chain, for HTTPS")
    tls_key: str | None = Field(None, description="PEM file of the certificate's private key")
    max_body_bytes: int = Field(32 << 20, ge=1024, description="largest request body")
    connect_seconds: float = Field(3.0, gt=0, description="longest time to connect to an engine")
    stall_seconds: float = Field(
        600.0, gt=0, description="longest time in which an engine sends nothing of a response"
    )
    attempts: int = Field(3, ge=1, description="engines tried before the first byte of a response")
    poll_seconds: float = Field(1.0, gt=0, description="time between two health checks of an engine")
    key_seconds: float = Field(
        2.0, ge=0, description="time for which a checked API key is not looked up again"
    )
    router: RouterConfig = Field(RouterConfig(), description="choice of an engine")

    @model_validator(mode="after")
    def _tls_needs_both(self) -> GatewayConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key are set together, or neither is")
        return self

    @property
    def guarded(self) -> bool:
        return self.keys == "required" or (self.keys == "auto" and not is_loopback(self.host))
