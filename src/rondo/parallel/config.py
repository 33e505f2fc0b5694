"""Settings of a training job's layout over its ranks and of its memory use."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rondo.base.settings.config import Section

Precision = Literal["float32", "bfloat16", "float16", "fp8", "fp8-rowwise"]
Checkpointing = Literal["none", "selective", "full"]


class MemoryConfig(Section):
    """Memory placement, activation checkpointing and precision of training."""

    precision: Precision | None = Field(
        None,
        description="compute type over float32 weights, moments and gradient sums; default: the type of the weights. "
        "fp8 applies to the matrix products of layers, with one scale per tensor or per row",
    )
    checkpointing: Checkpointing = Field(
        "none",
        description="activation checkpointing: selective recomputes all but attention and every second matrix "
        "product, full recomputes the whole layer",
    )
    logits: Literal["whole", "chunked"] = Field(
        "whole", description="chunked: compute the head and its loss in parts, twice, to save memory"
    )

    offload: Literal["none", "optimizer", "all"] = Field(
        "none",
        description="offload to host memory: the optimizer's state and masters, or the weights as well",
    )
    offload_to: str = Field("", description="folder on a fast disk for offloaded state; default: host memory")

    @property
    def kept(self) -> str | None:
        """Type of the stored weights, if they are loaded in a narrower type. None: the type in which they are
        loaded.
        """
        return None

    def neutral(self) -> set[str]:
        """Settings whose present values do not affect the training result."""
        return set(MemoryConfig.model_fields) - ({"precision"} if self.precision else set())


class LayoutConfig(Section):
    """Degrees of each kind of parallelism, with the planner's names: ranks = dp * tp * pp * cp."""

    dp: int = Field(0, ge=0, description="data-parallel ranks; 0: all remaining ranks")
    dp_replicate: int = Field(
        1,
        gt=0,
        description="HSDP: number of replica groups among the dp ranks; sharding stays within a group",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        3,
        description="ZeRO stage: 1 shards the optimizer's state, 2 also gradients, 3 also parameters",
    )
    tp: int = Field(1, gt=0, description="tensor-parallel ranks, with sequence parallelism")
    cp: int = Field(1, gt=0, description="context-parallel ranks")
    cp_method: Literal["ulysses", "ring"] = Field(
        "ulysses", description="ulysses exchanges tokens for heads (all-to-all), ring rotates keys and values"
    )
    pp: int = Field(1, gt=0, description="pipeline stages")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = Field(
        "1f1b", description="pipeline schedule"
    )
    virtual: int = Field(1, gt=0, description="interleaved: model chunks per stage")
    ep: int = Field(1, gt=0, description="expert-parallel ranks")
    timeout: float = Field(
        600, gt=0, description="seconds that a rank waits for another rank before the job fails"
    )
    stall: float = Field(
        60,
        gt=0,
        description="seconds without progress on any rank before a hang is reported, at least five times the usual "
        "duration of the step",
    )
