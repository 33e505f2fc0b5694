"""What an RL job is told of engines that are not in its process. Torch-free."""

from __future__ import annotations

from pydantic import Field, field_validator

from rondo.base.config import Section


class FarConfig(Section):
    """Engines behind HTTP: a `rondo serve`, or a vLLM."""

    url: tuple[str, ...] = Field(
        (),
        description="where engines are, as http://127.0.0.1:8000; by default the engine is in this process",
    )
    folder: str = Field(
        "",
        description="where new weights are written for the engines to read; the job's own folder by default",
    )
    wait: float = Field(
        300.0, gt=0, description="seconds that an engine which is gone has to come back before the run ends"
    )

    @field_validator("url")
    @classmethod
    def _are_urls(cls, url: tuple[str, ...]) -> tuple[str, ...]:
        for one in url:
            if not one.startswith(("http://", "https://")):
                raise ValueError(
                    f"{one!r} is not where an engine can be asked: write it as http://127.0.0.1:8000"
                )
        if len(set(url)) < len(url):
            raise ValueError("an engine is named twice")
        return url


class RayConfig(Section):
    """Roles that Ray places: engines on some nodes of a cluster, the learner on another."""

    engines: int = Field(0, ge=0, description="how many engines Ray starts; 0: it is not used")
    address: str = Field("auto", description="of the Ray cluster, as ray.init takes it")
    cpus: float = Field(1.0, gt=0, description="CPUs that Ray keeps for each role")
    gpus: float = Field(0.0, ge=0, description="GPUs that Ray keeps for each role")
    serve: tuple[str, ...] = Field(
        (), description="further flags of `rondo serve` for the engines, as --engine.dtype=bfloat16"
    )
