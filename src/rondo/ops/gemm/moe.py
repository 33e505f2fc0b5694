"""Mixture of experts: routing of tokens, and the experts' computation."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rondo.ops.gemm.linear import linear
from rondo.ops.gemm.quantized import Quantized, grouped_quantized_linear
from rondo.ops.pointwise.activation import gated
from rondo.ops.sharded.layout import refuse_shards


@dataclass(frozen=True)
class RouterSpec:
    """The conversion of router scores to selected experts and their weights."""

    num_experts: int
    top_k: int
    score: Literal["softmax", "softmax_of_chosen", "sigmoid"]
    normalize: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_chosen: int = 1
    group_score: Literal["max", "top2"] = "max"


def route(spec: RouterSpec, logits: Tensor, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Router logits [T, E] -> (weights [T, k] fp32, experts [T, k]).

    `correction` [E] is the load-balancing bias: it affects the selection and not the weights.
    """
    logits = logits.float()
    if spec.score == "softmax_of_chosen":
        chosen, experts = logits.topk(spec.top_k, dim=-1)
        return chosen.softmax(-1), experts
    scores = _sigmoid(logits) if spec.score == "sigmoid" else logits.softmax(-1)
    choice = scores if correction is None else scores + correction
    if spec.groups > 1:
        choice = _keep_best_groups(spec, choice)
    experts = choice.topk(spec.top_k, dim=-1).indices
    weights = scores.gather(-1, experts)
    if spec.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if spec.score == "sigmoid" else 0.0))
    return weights * spec.scale, experts


def _sigmoid(x: Tensor) -> Tensor:
    """Sigmoid whose result does not depend on the number of rows; torch's vectorized one rounds the last few numbers of
    a tensor differently."""
    return 1 / (1 + (-x.clamp(min=-80)).exp())


def _keep_best_groups(spec: RouterSpec, choice: Tensor) -> Tensor:
    grouped = choice.view(len(choice), spec.groups, choice.shape[1] // spec.groups)
    best = grouped.amax(-1) if spec.group_score == "max" else grouped.topk(2, dim=-1).values.sum(-1)
    kept = best.topk(spec.groups_chosen, dim=-1).indices
    mask = torch.zeros_like(best, dtype=torch.bool).scatter(-1, kept, True)
    return grouped.masked_fill(~mask[..., None], -torch.inf).flatten(1)


@dataclass(frozen=True)
class ExpertWeights:
    """All experts of a layer, stacked: gate and up [E, I, H], down [E, H, I], biases [E, I], [E, I], [E, H]."""

    gate: Tensor | Quantized
    up: Tensor | Quantized
    down: Tensor | Quantized
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def grouped_experts(
    x: Tensor, weights: Tensor, experts: Tensor, parts: ExpertWeights, activation: str
) -> Tensor:
    """x [T, H], weights and experts [T, k] -> [T, H]: the weighted sum of the selected experts' outputs."""
    refuse_shards("a mixture of experts", x, weights, experts, parts.gate, parts.up, parts.down)
    if len(x) == 0:
        return x
    order = experts.flatten().argsort(stable=True)
    rows = order // experts.shape[1]
    counts = torch.bincount(experts.flatten(), minlength=parts.gate.shape[0]).tolist()
    scaled = weights.flatten()[order, None]
    if isinstance(parts.gate, Quantized):
        made = _quantized_experts(x[rows], experts.flatten()[order], counts, parts, activation)
        return torch.zeros_like(x).index_add(0, rows, made * scaled.to(x.dtype))
    outputs = []
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        inputs = x[rows[start : start + count]]
        outputs.append(_expert(inputs, expert, parts, activation) * scaled[start : start + count].to(x.dtype))
        start += count
    return torch.zeros_like(x).index_add(0, rows, torch.cat(outputs))


def _quantized_experts(
    x: Tensor, experts: Tensor, counts: list[int], parts: ExpertWeights, activation: str
) -> Tensor:
    """Outputs of quantized experts for rows sorted by expert, with one grouped product for all experts."""

    def project(inputs: Tensor, weight: Tensor | Quantized, bias: Tensor | None) -> Tensor:
        assert isinstance(weight, Quantized)
        out = grouped_quantized_linear(inputs, weight, counts)
        return out if bias is None else out + bias[experts]

    hidden = gated(activation, project(x, parts.gate, parts.gate_bias), project(x, parts.up, parts.up_bias))
    return project(hidden, parts.down, parts.down_bias)


def _expert(x: Tensor, expert: int, parts: ExpertWeights, activation: str) -> Tensor:
    def project(inputs: Tensor, weight: Tensor | Quantized, bias: Tensor | None) -> Tensor:
        assert isinstance(weight, Tensor)
        return linear(inputs, weight[expert], None if bias is None else bias[expert])

    hidden = gated(activation, project(x, parts.gate, parts.gate_bias), project(x, parts.up, parts.up_bias))
    return project(hidden, parts.down, parts.down_bias)
