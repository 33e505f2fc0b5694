"""Model sizes for the planner: dimensions, parameters, and operations per token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rondo.base.errors import ConfigError

LARGEST, MOST_LAYERS = 2**24, 10_000


@dataclass(frozen=True)
class Latent:
    """Latent attention (MLA): keys and values are projected from one low-rank latent per token."""

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None


@dataclass(frozen=True)
class ExpertShape:
    """The feed-forward part of a sparse layer. `shared` is the total width of the shared experts, which process every
    token.
    """

    count: int
    chosen: int
    intermediate: int
    shared: int = 0


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. In a model with experts the first `dense_layers` of `layers` are dense; `predict_layers`
    additional layers predict further tokens (MTP).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    tied: bool = False
    experts: ExpertShape | None = None
    dense_layers: int = 0
    latent: Latent | None = None
    predict_layers: int = 0
    windows: tuple[int | None, ...] = ()
    """Attention window of each layer; empty if all layers have full attention."""
    context: int | None = None

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} of {self.name} must be above 0.", param=field)
            if getattr(self, field) > LARGEST:
                raise ConfigError(f"{field} of {self.name} is above {LARGEST:,}.", param=field)
        if self.layers > MOST_LAYERS:
            raise ConfigError(f"layers of {self.name} are above {MOST_LAYERS:,}.", param="layers")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"heads ({self.heads}) of {self.name} are not divisible by kv_heads ({self.kv_heads}).",
                param="kv_heads",
            )

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def kv_width(self) -> int:
        """Width of keys, and of values, as attention uses them."""
        return self.kv_heads * self.head_dim

    @cached_property
    def attention_parameters(self) -> int:
        """Parameters of one layer's projections."""
        if (latent := self.latent) is None:
            return self.hidden * (2 * self.query_width + 2 * self.kv_width)
        query = self.heads * (latent.nope_dim + latent.rope_dim)
        asked = self.hidden * query if latent.q_rank is None else latent.q_rank * (self.hidden + query)
        kept = self.hidden * (latent.kv_rank + latent.rope_dim)
        unfolded = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return asked + kept + unfolded + self.value_width * self.hidden

    @property
    def matrices(self) -> int:
        """Number of matrices of a feed-forward layer: gate, up and down, or two without a gate."""
        return 3 if self.gated else 2

    @cached_property
    def dense_parameters(self) -> int:
        """Parameters of one dense feed-forward layer."""
        return self.matrices * self.hidden * self.intermediate

    @cached_property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts of one layer."""
        if self.experts is None:
            return 0
        return self.experts.count * self.matrices * self.hidden * self.experts.intermediate

    @cached_property
    def beside_experts(self) -> int:
        """Parameters of the router and the shared experts of one layer."""
        if self.experts is None:
            return 0
        return self.hidden * self.experts.count + self.matrices * self.hidden * self.experts.shared

    @property
    def sparse_layers(self) -> int:
        return 0 if self.experts is None else self.layers - self.dense_layers

    @property
    def vocabulary_parameters(self) -> int:
        """Parameters of the embedding, or of the head."""
        return self.vocab * self.hidden

    @cached_property
    def undivided(self) -> int:
        """Parameters of all layers except the routed experts."""
        dense = self.layers - self.sparse_layers
        return (
            self.layers * (self.attention_parameters + 2 * self.hidden)
            + dense * self.dense_parameters
            + self.sparse_layers * self.beside_experts
        )

    @cached_property
    def parameters(self) -> int:
        vocabulary = self.vocabulary_parameters * (1 if self.tied else 2)
        return self.undivided + self.sparse_layers * self.expert_parameters + vocabulary + self.hidden

    @cached_property
    def chosen_parameters(self) -> int:
        """Parameters of the routed experts that one token uses in one layer."""
        if self.experts is None:
            return 0
        return self.expert_parameters * self.experts.chosen // self.experts.count

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of all layers that are multiplied per token."""
        norms = 2 * self.layers * self.hidden
        return self.undivided - norms + self.sparse_layers * self.chosen_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters multiplied per token: without the embedding lookup, and with the chosen experts only."""
        layer = self.attention_parameters + (
            self.beside_experts + self.chosen_parameters if self.sparse_layers else self.dense_parameters
        )
        further = self.predict_layers * (layer + 2 * self.hidden**2 + self.vocabulary_parameters)
        return self.layer_parameters + self.vocabulary_parameters + further

    def inference_flops(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """FLOPs of prefill and decoding of one sequence: 2 per parameter of the layers for each computed token, 2 per
        parameter of the head for each sampled token, and causal attention over the context. Input tokens in the
        prefix cache cost nothing; the last sampled token is not computed. Further-token layers (MTP) are not counted.
        """
        end = input_tokens + max(0, output_tokens - 1)
        begin = min(cached_tokens, input_tokens)
        windows = self.windows or (None,) * self.layers
        attended = sum(_attended(end, window) - _attended(begin, window) for window in windows)
        return (
            2.0 * (end - begin) * self.layer_parameters
            + 2.0 * output_tokens * self.vocabulary_parameters
            + 2.0 * (self.query_width + self.value_width) * attended
        )

    def attention_flops(self, sequence: int, *, causal: bool = True) -> float:
        """FLOPs of attention's scores and weighted sums, per token, forward, in all layers."""
        seen = sum(_seen(sequence, window, causal) for window in self.windows)
        whole = self.predict_layers + (0 if self.windows else self.layers)
        seen += whole * _seen(sequence, None, causal)
        return 2 * (self.query_width + self.value_width) * seen

    def flops_per_token(self, sequence: int, *, causal: bool = True) -> float:
        """FLOPs per token of a training step, forward and backward. With `causal`, masked positions are not counted.
        Both conventions are in use and differ by a tenth.
        """
        return 6.0 * self.active_parameters + 3 * self.attention_flops(sequence, causal=causal)


def _attended(length: int, window: int | None) -> int:
    """Sum over the first `length` positions of the tokens that each attends to, itself included."""
    short = length if window is None else min(length, window)
    return short * (short + 1) // 2 + (length - short) * (window or 0)


def _seen(sequence: int, window: int | None, causal: bool) -> float:
    """Average number of attended tokens."""
    if window is None or window >= sequence:
        return sequence / 2 if causal else float(sequence)
    return window - window * window / (2 * sequence) if causal else float(window)
