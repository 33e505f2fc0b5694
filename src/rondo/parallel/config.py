"""How a training job is laid out over its ranks, and what each keeps in memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rondo.base.config import Section

Precision = Literal["float32", "bfloat16", "float16", "fp8", "fp8-rowwise"]
Checkpointing = Literal["none", "selective", "full"]


class MemoryConfig(Section):
    """What is kept where while a model trains, and how it computes."""

    precision: Precision | None = Field(
        None,
        description="what layers compute in, over weights, moments and sums of gradients in float32; by default the "
        "type of the weights. fp8 is for the products of layers alone, with a scale for each tensor or each row",
    )
    checkpointing: Checkpointing = Field(
        "none",
        description="what a layer computes again in its backward pass: selective all but attention and every second "
        "product, full everything",
    )
    logits: Literal["whole", "chunked"] = Field(
        "whole", description="chunked: the head's products and logits are made a part at a time, twice"
    )

    offload: Literal["none", "optimizer", "all"] = Field(
        "none",
        description="what waits elsewhere until it is used: the optimizer's state and masters, or the weights as well",
    )
    offload_to: str = Field("", description="a folder on a fast disk; empty: the memory of a GPU's host")

    @property
    def kept(self) -> str | None:
        """The type that ranks keep weights in, who may be given them in a narrower one. None: as they are given."""
        return None

    def neutral(self) -> set[str]:
        """Settings that, as they are, do not change what is learned."""
        return set(MemoryConfig.model_fields) - ({"precision"} if self.precision else set())


class LayoutConfig(Section):
    """Degrees of each parallelism, in the planner's words: ranks = dp * tp * pp * cp."""

    dp: int = Field(0, ge=0, description="ranks that share the batch; 0: all that the others leave")
    dp_replicate: int = Field(
        1,
        gt=0,
        description="of dp, how many groups each hold all states (HSDP): a group gathers within itself",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        3,
        description="what dp ranks divide: 1 the optimizer's state, 2 also gradients, 3 also parameters; 0 nothing",
    )
    tp: int = Field(1, gt=0, description="ranks that share every matrix and, between them, the tokens")
    cp: int = Field(1, gt=0, description="ranks that share a row's tokens, attention included")
    cp_method: Literal["ulysses", "ring"] = Field(
        "ulysses", description="ulysses exchanges tokens for heads, ring sends keys and values round"
    )
    pp: int = Field(1, gt=0, description="stages that share the layers")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = Field(
        "1f1b", description="the order of forward and backward passes over the stages"
    )
    virtual: int = Field(1, gt=0, description="pieces of the model a stage holds: for interleaved")
    ep: int = Field(1, gt=0, description="ranks that share the experts")
    timeout: float = Field(
        600, gt=0, description="seconds that a rank waits for another before it is an error"
    )
    stall: float = Field(
        60,
        gt=0,
        description="seconds in which no rank gets on before it is a hang; five times what the same work took before, "
        "where that is more",
    )
