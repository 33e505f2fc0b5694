"""Settings of remote engines. Torch-free."""

from __future__ import annotations

from pydantic import Field, field_validator

from rondo.base.settings.config import Section
from rondo.weights.config import WeightsConfig

TRANSPORTS = ("auto", "shm", "http", "folder")
STORES = ("store:", "s3://")


class FarConfig(Section):
    """Remote engines over HTTP: `rondo serve` or vLLM."""

    url: tuple[str, ...] = Field(
        (),
        description="URLs of remote engines, such as http://127.0.0.1:8001; default: an engine in this process",
    )
    transport: str = Field(
        "auto",
        examples=[*TRANSPORTS, "store:/mnt/shared/policy", "s3://bucket/policy"],
        description="transport of weights to the engines: shm (shared memory of this host), http (from the learner's "
        "host), folder (a model folder for each version), a store (store:/folder or s3://bucket/prefix), or auto: shm "
        "for engines of this host, http for others, and folder for engines that support neither",
    )
    directory: str = Field(
        "local:",
        description="weight directory in which the versions are published for `rondo weights serve`: local: (this "
        "process only) or etcd://HOST:PORT",
    )
    deltas: bool = Field(
        False,
        description="send only changed elements over http, with checksums of the result; a bucket is sent whole where "
        "that is smaller",
    )
    folder: str = Field(
        "",
        description="folder of the versions with the transport folder; default: the job's folder",
    )
    wait: float = Field(
        300.0, gt=0, description="seconds to wait for a lost engine to return before the job ends"
    )
    weights: WeightsConfig = Field(WeightsConfig(), description="weight push")

    @field_validator("transport")
    @classmethod
    def _is_transport(cls, transport: str) -> str:
        store = next((scheme for scheme in STORES if transport.startswith(scheme)), "")
        if transport not in TRANSPORTS and transport.removeprefix(store) in ("", transport):
            raise ValueError(
                f"{transport!r} is none of {', '.join(TRANSPORTS)}, store:/FOLDER and s3://BUCKET/PREFIX"
            )
        return transport

    @field_validator("directory")
    @classmethod
    def _is_directory(cls, directory: str) -> str:
        if directory not in ("", "local:") and not directory.startswith("etcd://"):
            raise ValueError(f"{directory!r} is neither local: nor etcd://HOST:PORT")
        return directory

    @property
    def store(self) -> str:
        """Address of the store, if that is the transport."""
        return self.transport if self.transport.startswith(STORES) else ""

    @property
    def may_use_folders(self) -> bool:
        """Whether versions are pushed as folders if shared memory is full."""
        return self.transport == "auto" and not self.is_published

    @property
    def is_published(self) -> bool:
        """Whether other processes follow the versions."""
        return self.directory not in ("", "local:")

    @field_validator("url")
    @classmethod
    def _are_urls(cls, url: tuple[str, ...]) -> tuple[str, ...]:
        for one in url:
            if not one.startswith(("http://", "https://")):
                raise ValueError(f"{one!r} is not the URL of an engine: write it as http://127.0.0.1:8001")
        if len(set(url)) < len(url):
            raise ValueError("an engine is named twice")
        return url


class RayConfig(Section):
    """Placement by Ray: engines on some nodes of a cluster, the learner on another."""

    engines: int = Field(0, ge=0, description="engines that Ray starts; 0: Ray is not used")
    address: str = Field("auto", description="address of the Ray cluster, as for ray.init")
    cpus: float = Field(1.0, gt=0, description="CPUs reserved for each role")
    gpus: float = Field(0.0, ge=0, description="GPUs reserved for each role")
    serve: tuple[str, ...] = Field(
        (), description="further flags of `rondo serve` for the engines, such as --engine.dtype=bfloat16"
    )
