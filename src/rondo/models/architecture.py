"""Architecture of a decoder as plain data, one entry a layer, derived from a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rondo.models.quantized.scheme import Quantization
from rondo.ops.gemm.moe import RouterSpec
from rondo.ops.pointwise.rope import RopeSpec


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention; with as many kv heads as query heads it is multi-head attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    window: int | None = None
    softcap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None
    sinks: bool = False

    @property
    def value_dim(self) -> int:
        return self.head_dim


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: keys and values are projected from one low-rank latent a token."""

    num_heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    rope: RopeSpec
    bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads


@dataclass(frozen=True)
class Dense:
    """A gated feed-forward layer."""

    intermediate: int
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True)
class Moe:
    """Experts behind a router, with an optional shared dense layer for every token."""

    router: RouterSpec
    intermediate: int
    activation: str = "silu"
    router_bias: bool = False
    correction: bool = False
    expert_bias: bool = False
    shared: Dense | None = None


@dataclass(frozen=True)
class Layer:
    """One decoder layer. `norms` is the position of the norms: before attention and feed-forward, after them, or
    both."""

    attention: Gqa | Mla
    mlp: Dense | Moe
    norms: Literal["before", "after", "both"] = "before"


@dataclass(frozen=True)
class ModelConfig:
    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    max_positions: int
    norm_eps: float
    norm_offset: float = 0.0
    embed_scale: float | None = None
    logit_softcap: float | None = None
    tied: bool = False
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    hf: Mapping[str, Any] | None = None
    """The original `config.json`, written back unchanged on export."""
    quantization: Quantization | None = None
    """Quantization of the checkpoint's weights."""
    scores: bool = False
    """Whether this is a reward model, whose head outputs one score in place of logits."""
