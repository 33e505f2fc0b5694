"""The parts of a decoder layer. Their input is a flat row of tokens [T, H]: no batch axis, no cache, no device code."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rondo.models.architecture import Dense, Gqa, Mla, ModelConfig, Moe
from rondo.models.attend import Attend
from rondo.models.heads.additions import added
from rondo.ops import (
    AttentionSpec,
    ExpertWeights,
    RopeSpec,
    add_rms_norm,
    gated,
    grouped_experts,
    linear,
    rms_norm,
    rotate,
    route,
)

RopeTables = Mapping[RopeSpec, tuple[Tensor, Tensor]]

LATENT_EPS = 1e-6
"""Epsilon of DeepSeek's norms over the latents, independent of `rms_norm_eps`."""


class Linear(nn.Linear):
    """`nn.Linear` through `ops.linear`."""

    def reset_parameters(self) -> None:
        """Does nothing: weights are loaded from a checkpoint or drawn by `new`."""

    def forward(self, input: Tensor) -> Tensor:
        return added(self, input, linear(input, self.weight, self.bias))


class Norm(nn.Module):
    """RMSNorm over the last axis."""

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)


def norm_like(config: ModelConfig, size: int) -> Norm:
    return Norm(size, config.norm_eps, config.norm_offset)


def normed_sum(norm: nn.Module, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """x + added, and the norm of the sum; fused into one pass if a kernel supports it."""
    if isinstance(norm, Norm) and type(norm).forward is Norm.forward:
        return add_rms_norm(x, added, norm.weight, norm.eps, norm.offset)
    total = x + added
    return total, norm(total)


def take(x: Tensor, rows: Tensor | None) -> Tensor:
    """Rows of x [T, H] or [T]; all if `rows` is None. Implemented as an embedding, whose backward pass is fast on a CPU
    and deterministic."""
    if rows is None:
        return x
    return nn.functional.embedding(rows, x) if x.dim() > 1 else take(x[:, None], rows)[:, 0]


class GqaAttention(nn.Module):
    def __init__(self, config: ModelConfig, part: Gqa, index: int) -> None:
        super().__init__()
        queries, keys = part.num_heads * part.head_dim, part.num_kv_heads * part.head_dim
        self.part = part
        self.spec = AttentionSpec(
            index,
            part.num_heads,
            part.num_kv_heads,
            part.head_dim,
            part.value_dim,
            part.scale,
            part.window,
            part.softcap,
            part.sinks,
        )
        self.q = Linear(config.hidden_size, queries, part.qkv_bias)
        self.k = Linear(config.hidden_size, keys, part.qkv_bias)
        self.v = Linear(config.hidden_size, keys, part.qkv_bias)
        self.o = Linear(queries, config.hidden_size, part.out_bias)
        if part.qk_norm is not None:
            self.q_norm = norm_like(config, part.head_dim if part.qk_norm == "head" else queries)
            self.k_norm = norm_like(config, part.head_dim if part.qk_norm == "head" else keys)
        self.sinks = nn.Parameter(torch.empty(part.num_heads)) if part.sinks else None

    def forward(self, x: Tensor, ropes: RopeTables, attend: Attend, read: Tensor | None = None) -> Tensor:
        """Attention over all tokens; returns the rows `read` (default: all)."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.part.qk_norm == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (heads.unflatten(-1, (-1, self.part.head_dim)) for heads in (q, k, v))
        if self.part.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.part.rope is not None:
            cos, sin = ropes[self.part.rope]
            q, k = rotate(self.part.rope, q, cos, sin), rotate(self.part.rope, k, cos, sin)
        out: Tensor = self.o(take(attend(self.spec, q, k, v, self.sinks).flatten(1), read))
        return out


class MlaAttention(nn.Module):
    def __init__(self, config: ModelConfig, part: Mla, index: int) -> None:
        super().__init__()
        heads = part.num_heads
        self.part = part
        self.spec = AttentionSpec(index, heads, heads, part.head_dim, part.value_dim, part.scale)
        if part.q_rank is None:
            self.q = Linear(config.hidden_size, heads * part.head_dim, bias=False)
        else:
            self.q_down = Linear(config.hidden_size, part.q_rank, part.bias)
            self.q_norm = Norm(part.q_rank, LATENT_EPS)
            self.q_up = Linear(part.q_rank, heads * part.head_dim, bias=False)
        self.kv_down = Linear(config.hidden_size, part.kv_rank + part.rope_dim, part.bias)
        self.kv_norm = Norm(part.kv_rank, LATENT_EPS)
        self.kv_up = Linear(part.kv_rank, heads * (part.nope_dim + part.value_dim), bias=False)
        self.o = Linear(heads * part.value_dim, config.hidden_size, part.bias)

    def forward(self, x: Tensor, ropes: RopeTables, attend: Attend, read: Tensor | None = None) -> Tensor:
        part = self.part
        q = self.q(x) if part.q_rank is None else self.q_up(self.q_norm(self.q_down(x)))
        q_nope, q_rope = q.unflatten(-1, (part.num_heads, part.head_dim)).split(
            [part.nope_dim, part.rope_dim], -1
        )
        latent, k_rope = self.kv_down(x).split([part.kv_rank, part.rope_dim], -1)
        kv = self.kv_up(self.kv_norm(latent)).unflatten(-1, (part.num_heads, part.nope_dim + part.value_dim))
        k_nope, v = kv.split([part.nope_dim, part.value_dim], -1)
        cos, sin = ropes[part.rope]
        q_rope = rotate(part.rope, q_rope, cos, sin)
        k_rope = rotate(part.rope, k_rope[:, None], cos, sin).expand(-1, part.num_heads, -1)
        q, k = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, k_rope], -1)
        out: Tensor = self.o(take(attend(self.spec, q, k, v).flatten(1), read))
        return out


class DenseMlp(nn.Module):
    def __init__(self, config: ModelConfig, part: Dense) -> None:
        super().__init__()
        self.activation = part.activation
        self.gate = Linear(config.hidden_size, part.intermediate, part.bias)
        self.up = Linear(config.hidden_size, part.intermediate, part.bias)
        self.down = Linear(part.intermediate, config.hidden_size, part.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(gated(self.activation, self.gate(x), self.up(x)))
        return out


class ExpertRouter(nn.Module):
    """Scores every expert for every token. The learner updates the correction for load balancing, without gradients."""

    def __init__(self, config: ModelConfig, part: Moe) -> None:
        super().__init__()
        self.spec = part.router
        self.weight = nn.Parameter(torch.empty(part.router.num_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(part.router.num_experts)) if part.router_bias else None
        self.correction = (
            nn.Parameter(torch.empty(part.router.num_experts), requires_grad=False)
            if part.correction
            else None
        )
        self.watch: Callable[[Tensor], Tensor] | None = None
        """Callback of the learner: receives the logits and returns them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.correction is not None:
            x = x.float()
        logits = linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        if self.watch is not None:
            logits = self.watch(logits)
        return route(self.spec, logits, self.correction)


class Experts(nn.Module):
    """All experts of a layer, stacked on the first axis."""

    def __init__(self, config: ModelConfig, part: Moe) -> None:
        super().__init__()
        experts, hidden, inner = part.router.num_experts, config.hidden_size, part.intermediate
        self.activation = part.activation
        self.gate = nn.Parameter(torch.empty(experts, inner, hidden))
        self.up = nn.Parameter(torch.empty(experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, inner))
        self.gate_bias = nn.Parameter(torch.empty(experts, inner)) if part.expert_bias else None
        self.up_bias = nn.Parameter(torch.empty(experts, inner)) if part.expert_bias else None
        self.down_bias = nn.Parameter(torch.empty(experts, hidden)) if part.expert_bias else None

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        parts = ExpertWeights(self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias)
        return grouped_experts(x, weights, experts, parts, self.activation)


class MoeMlp(nn.Module):
    def __init__(self, config: ModelConfig, part: Moe) -> None:
        super().__init__()
        self.router = ExpertRouter(config, part)
        self.experts = Experts(config, part)
        self.shared = DenseMlp(config, part.shared) if part.shared is not None else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.experts(x, *self.router(x))
        return out if self.shared is None else out + self.shared(x)
