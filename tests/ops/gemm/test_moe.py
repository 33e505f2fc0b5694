"""Choosing experts and running them. (Families are compared with transformers as a whole.)"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.activations import ACT2FN

from ops.native.test_quantized_native import KINDS, weight_of
from rondo.ops import (
    ExpertWeights,
    Quantized,
    RouterSpec,
    gated,
    grouped_experts,
    linear,
    quantized_linear,
    route,
)
from rondo.ops.gemm import moe
from rondo.ops.gemm.quantized import grouped_quantized_linear

TOKENS, EXPERTS = 40, 8
LOGITS = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0))
SPECS = {
    "softmax": RouterSpec(EXPERTS, 3, "softmax"),
    "softmax, normalized": RouterSpec(EXPERTS, 3, "softmax", normalize=True),
    "of chosen": RouterSpec(EXPERTS, 2, "softmax_of_chosen"),
    "sigmoid": RouterSpec(EXPERTS, 3, "sigmoid", normalize=True, scale=2.5),
    "groups by max": RouterSpec(EXPERTS, 2, "softmax", groups=4, groups_chosen=2),
    "groups by two": RouterSpec(
        EXPERTS, 3, "sigmoid", normalize=True, groups=4, groups_chosen=2, group_score="top2"
    ),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_experts(spec: RouterSpec, dtype: torch.dtype) -> None:
    weights, experts = route(spec, LOGITS.to(dtype))
    assert weights.dtype == torch.float32
    assert weights.shape == experts.shape == (TOKENS, spec.top_k)
    assert all(len(set(row)) == spec.top_k for row in experts.tolist()), "no expert twice"
    assert (weights > 0).all()
    if spec.normalize or spec.score == "softmax_of_chosen":
        assert torch.allclose(weights.sum(-1), torch.full((TOKENS,), spec.scale), atol=1e-5)
    if spec.groups > 1:
        size = EXPERTS // spec.groups
        assert all(len({e // size for e in row}) <= spec.groups_chosen for row in experts.tolist())
    else:
        assert torch.equal(experts.sort().values, LOGITS.to(dtype).topk(spec.top_k).indices.sort().values)


def test_weights_are_the_scores() -> None:
    weights, experts = route(SPECS["softmax"], LOGITS)
    assert torch.equal(weights, LOGITS.softmax(-1).gather(-1, experts))
    weights, experts = route(SPECS["of chosen"], LOGITS)
    assert torch.allclose(weights, LOGITS.gather(-1, experts).softmax(-1))


def test_correction_chooses_and_does_not_weigh() -> None:
    spec = RouterSpec(EXPERTS, 2, "sigmoid")
    correction = torch.zeros(EXPERTS)
    correction[5] = 10.0
    weights, experts = route(spec, LOGITS, correction)
    assert (experts == 5).any(-1).all()
    torch.testing.assert_close(weights, LOGITS.sigmoid().gather(-1, experts))


def test_experts_of_a_closed_group_are_never_chosen_even_below_zero() -> None:
    """With a correction that makes every score negative, the mask must still win."""
    spec = RouterSpec(4, 2, "sigmoid", groups=2, groups_chosen=1, group_score="top2")
    _, experts = route(spec, torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.full((4,), -5.0))
    assert sorted(experts[0].tolist()) == [2, 3]


def weights_of(hidden: int, inner: int, experts: int, bias: bool) -> ExpertWeights:
    generator = torch.Generator().manual_seed(1)

    def make(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) / 3).requires_grad_()

    biases = [make(experts, inner), make(experts, inner), make(experts, hidden)] if bias else []
    return ExpertWeights(
        make(experts, inner, hidden), make(experts, inner, hidden), make(experts, hidden, inner), *biases
    )


def every_expert_on_every_token(
    x: Tensor, weights: Tensor, experts: Tensor, parts: ExpertWeights, activation: str
) -> Tensor:
    def biased(name: str, expert: int) -> Tensor | float:
        bias = getattr(parts, f"{name}_bias")
        return 0.0 if bias is None else bias[expert]

    out = torch.zeros_like(x)
    for expert in range(parts.gate.shape[0]):
        gate = x @ parts.gate[expert].T + biased("gate", expert)
        up = x @ parts.up[expert].T + biased("up", expert)
        y = gated(activation, gate, up) @ parts.down[expert].T + biased("down", expert)
        out = out + y * (weights * (experts == expert)).sum(-1, keepdim=True)
    return out


@settings(max_examples=25)
@given(tokens=st.integers(1, 30), experts=st.integers(1, 9), data=st.data(), bias=st.booleans())
def test_grouped_experts(tokens: int, experts: int, data: st.DataObject, bias: bool) -> None:
    top_k = data.draw(st.integers(1, experts))
    generator = torch.Generator().manual_seed(tokens)
    parts = weights_of(6, 5, experts, bias)
    x = torch.randn(tokens, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    chosen = torch.rand(tokens, experts, generator=generator).topk(top_k).indices
    weights = torch.rand(tokens, top_k, generator=generator, dtype=torch.float64, requires_grad=True)
    ours = grouped_experts(x, weights, chosen, parts, "silu")
    theirs = every_expert_on_every_token(x, weights, chosen, parts, "silu")
    assert torch.allclose(ours, theirs)
    inputs = [x, weights, parts.gate, parts.down]
    for mine, expected in zip(
        torch.autograd.grad(ours.square().sum(), inputs),
        torch.autograd.grad(theirs.square().sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(mine, expected)


PRECISIONS = ("fp32", "bf16", *KINDS)


def experts_of(kind: str, hidden: int, inner: int, count: int) -> ExpertWeights:
    """In a precision of floats, or quantized."""
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    if kind in KINDS:
        weights = (
            weight_of(
                kind, *shape, shape[1] if kind.endswith("activations") else 32, experts=(count,), seed=i
            )
            for i, shape in enumerate(shapes)
        )
        return ExpertWeights(*weights)
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    make = torch.Generator().manual_seed(1)
    return ExpertWeights(*(torch.randn(count, *shape, generator=make).to(dtype) / 8 for shape in shapes))


@pytest.mark.parametrize("kind", PRECISIONS)
def test_every_precision_multiplies_each_row_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However uneven the choice is: one expert has most rows, one none. What comes out is each token's own rows."""
    hidden, inner, count, tokens = 64, 96, 5, 41
    parts, multiplied = experts_of(kind, hidden, inner, count), list[int]()

    def counted(x: Tensor, *others: Any) -> Tensor:
        multiplied.append(len(x))
        return (grouped_quantized_linear if kind in KINDS else linear)(x, *others)

    monkeypatch.setattr(moe, "grouped_quantized_linear", counted)
    monkeypatch.setattr(moe, "linear", counted)
    make = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, hidden, generator=make).to(torch.bfloat16 if kind == "bf16" else torch.float32)
    chosen = torch.stack([torch.full((tokens,), 3), torch.tensor([0, 2, 4])[torch.arange(tokens) % 3]], 1)
    chosen[0] = torch.tensor([4, 2])
    weights = torch.rand(tokens, 2, generator=make)
    found = grouped_experts(x, weights, chosen, parts, "silu")
    assert sum(multiplied) == 3 * tokens * 2
    assert len(multiplied) == 3 * (1 if kind in KINDS else 4)

    def by(weight: Tensor | Quantized, expert: int, row: Tensor) -> Tensor:
        if isinstance(weight, Quantized):
            return quantized_linear(row, weight.expert(expert))
        return linear(row, weight[expert])

    for token in range(tokens):
        row, own = x[token : token + 1], torch.zeros(1, hidden)
        for expert, weight in zip(chosen[token].tolist(), weights[token], strict=True):
            inside = gated("silu", by(parts.gate, expert, row), by(parts.up, expert, row))
            own += weight * by(parts.down, expert, inside).float()
        apart = (found[token].float() - own).abs().max()
        assert apart <= (2e-2 if kind == "bf16" else 1e-5) * own.abs().max()


def test_one_popular_expert() -> None:
    parts = weights_of(6, 5, 8, bias=False)
    x = torch.randn(9, 6, dtype=torch.float64)
    chosen, weights = torch.full((9, 1), 3), torch.ones(9, 1, dtype=torch.float64)
    dense = F.silu(x @ parts.gate[3].T) * (x @ parts.up[3].T) @ parts.down[3].T
    assert torch.allclose(grouped_experts(x, weights, chosen, parts, "silu"), dense)


@pytest.mark.parametrize(
    ("kind", "theirs"), [("silu", "silu"), ("gelu_tanh", "gelu_pytorch_tanh"), ("gelu", "gelu")]
)
def test_activations(kind: str, theirs: str) -> None:
    gate, up = torch.randn(2, 5, 7)
    assert torch.allclose(gated(kind, gate, up), ACT2FN[theirs](gate) * up, atol=1e-6)


def test_unknown_activation() -> None:
    with pytest.raises(ValueError, match="unknown activation 'relu'"):
        gated("relu", torch.ones(1), torch.ones(1))
