"""Settings of remote engines. Torch-free."""

from __future__ import annotations

from pydantic import Field, field_validator

from rondo.base.settings.config import Section


class FarConfig(Section):
    """Remote engines over HTTP: `rondo serve` or vLLM."""

    url: tuple[str, ...] = Field(
        (),
        description="URLs of remote engines, such as http://127.0.0.1:8000; default: an engine in this process",
    )
    folder: str = Field(
        "",
        description="folder through which new weights reach the engines; default: the job's folder",
    )
    wait: float = Field(
        300.0, gt=0, description="seconds to wait for a lost engine to return before the job ends"
    )

    @field_validator("url")
    @classmethod
    def _are_urls(cls, url: tuple[str, ...]) -> tuple[str, ...]:
        for one in url:
            if not one.startswith(("http://", "https://")):
                raise ValueError(f"{one!r} is not the URL of an engine: write it as http://127.0.0.1:8000")
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
