"""Folding of AWQ's factors into the producer of a matrix's inputs: the norm before it, or the rows of the matrix before
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from rondo.models.decoder import DecoderLayer
from rondo.models.parts import DenseMlp, GqaAttention, Linear, MlaAttention, MoeMlp, Norm
from rondo.models.quantized.quantize.observing import Key

Weights = dict[Key, Tensor]


@dataclass(frozen=True)
class Fold:
    """`shrink(factors)` divides the inputs of the matrices `fed` by the factors."""

    fed: list[Key]
    shrink: Callable[[Tensor], None]


def folds(layer: DecoderLayer, prefix: str, weights: Weights) -> Iterator[Fold]:
    """Possible folds of a layer. `weights` are the layer's matrices; `shrink` changes producing matrices there, and
    norms and biases in place."""
    attention, mlp = layer.attention, layer.mlp
    before = layer.attention_norm, layer.mlp_norm
    path = f"{prefix}.attention"
    if isinstance(before[0], Norm):
        yield Fold(_keys(path, attention, ("q", "q_down", "k", "v", "kv_down")), _norm(before[0]))
    if isinstance(attention, MlaAttention):
        for name in ("q", "kv"):
            norm = getattr(attention, f"{name}_norm", None)
            if norm is not None:
                yield Fold([(f"{path}.{name}_up.weight", None)], _norm(norm))
    elif attention.part.num_heads == attention.part.num_kv_heads:
        assert isinstance(attention, GqaAttention)
        yield Fold([(f"{path}.o.weight", None)], _rows(weights, (f"{path}.v.weight", None), attention.v.bias))
    yield from _of_mlp(mlp, before[1], f"{prefix}.mlp", weights)


def _keys(path: str, owner: nn.Module, names: tuple[str, ...]) -> list[Key]:
    return [
        (f"{path}.{name}.weight", None) for name in names if isinstance(getattr(owner, name, None), Linear)
    ]


def _of_mlp(mlp: nn.Module, before: nn.Module, path: str, weights: Weights) -> Iterator[Fold]:
    if isinstance(mlp, DenseMlp):
        if isinstance(before, Norm):
            yield Fold(_keys(path, mlp, ("gate", "up")), _norm(before))
        yield Fold([(f"{path}.down.weight", None)], _rows(weights, (f"{path}.up.weight", None), mlp.up.bias))
        return
    assert isinstance(mlp, MoeMlp)
    experts = range(len(mlp.experts.gate))
    fed: list[Key] = [(f"{path}.experts.{name}", expert) for expert in experts for name in ("gate", "up")]
    if mlp.shared is not None:
        fed += _keys(f"{path}.shared", mlp.shared, ("gate", "up"))
        yield from _of_mlp(mlp.shared, nn.Identity(), f"{path}.shared", weights)
    if isinstance(before, Norm):
        norm, router = _norm(before), mlp.router

        def shrink(factors: Tensor) -> None:
            norm(factors)
            router.weight.copy_(router.weight.float() * factors)

        yield Fold(fed, shrink)
    for expert in experts:
        yield Fold([(f"{path}.experts.down", expert)], _rows(weights, (f"{path}.experts.up", expert), None))


def _norm(norm: Norm) -> Callable[[Tensor], None]:
    def shrink(factors: Tensor) -> None:
        norm.weight.copy_((norm.weight.float() + norm.offset) / factors - norm.offset)

    return shrink


def _rows(weights: Weights, feeding: Key, bias: Tensor | None) -> Callable[[Tensor], None]:
    def shrink(factors: Tensor) -> None:
        weights[feeding] = weights[feeding] / factors[:, None]
        if bias is not None:
            bias.copy_(bias.float() / factors)

    return shrink
