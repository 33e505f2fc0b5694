"""Settings of the gateway. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.control.config import (
    BatchesConfig,
    FilesConfig,
    JobsConfig,
    QueueConfig,
    ResponsesConfig,
    RouterConfig,
)
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
    connect_seconds: float = Field(10.0, gt=0, description="longest time to connect to an engine")
    stall_seconds: float = Field(
        600.0, gt=0, description="longest time in which an engine sends nothing of a response"
    )
    attempts: int = Field(3, ge=1, description="engines tried before the first byte of a response")
    poll_seconds: float = Field(1.0, gt=0, description="time between two health checks of an engine")
    key_seconds: float = Field(
        2.0, ge=0, description="time for which a checked API key is not looked up again"
    )
    discovery: Several = Field(
        [],
        description="further sources of engines: kubernetes://NAMESPACE/SERVICE[:PORT] for the ready endpoints of a "
        "service, dns://NAME:PORT for the addresses of a name",
    )
    discovery_seconds: float = Field(5.0, gt=0, description="time between two look-ups of a DNS name")
    kubernetes_api: str | None = Field(
        None, description="URL of the Kubernetes API; default: the API of the pod's cluster"
    )
    kubernetes_account: str = Field(
        "/var/run/secrets/kubernetes.io/serviceaccount",
        description="folder with the service account's token and ca.crt",
    )
    queue: QueueConfig = Field(QueueConfig(), description="the durable queue")
    queue_body_bytes: int = Field(
        128 << 20, ge=1 << 20, description="largest body of a batch of queued requests or of results"
    )
    upload_bytes: int = Field(
        10 << 30, ge=1 << 20, description="largest file of the generate API's upload route"
    )
    wait_seconds: float = Field(
        60.0, ge=0, description="longest time that a request of the generate API waits for results"
    )
    supervisor: str | None = Field(
        None, description="URL of the supervisor that loads models on demand; `rondo up` sets it"
    )
    supervisor_key: str | None = Field(None, description="key of the supervisor; `rondo up` sets it")
    load_seconds: float = Field(
        330.0, gt=0, description="longest time that a request waits until its model is loaded"
    )
    start_seconds: float = Field(
        1800.0,
        gt=0,
        description="longest time for which an engine that has not answered yet counts as starting, so that requests "
        "for models that no engine serves may be repeated",
    )
    router: RouterConfig = Field(RouterConfig(), description="choice of an engine")
    files: FilesConfig = Field(FilesConfig(), description="files of clients")
    batches: BatchesConfig = Field(BatchesConfig(), description="batches of requests")
    responses: ResponsesConfig = Field(ResponsesConfig(), description="stored responses")
    jobs: JobsConfig = Field(JobsConfig(), description="training jobs")

    @model_validator(mode="after")
    def _tls_needs_both(self) -> GatewayConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key are set together, or neither is")
        return self

    @property
    def section(self) -> str:
        return "gateway"

    @property
    def guarded(self) -> bool:
        return self.keys == "required" or (self.keys == "auto" and not is_loopback(self.host))

    @property
    def descriptors(self) -> int:
        return 2  # the client's connection and the engine's
