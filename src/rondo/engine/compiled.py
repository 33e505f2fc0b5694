"""A model's layers as one compiled call a step, where the model is of the common kind and runs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rondo.engine.cache import KVCache
from rondo.models import Decoder
from rondo.models.adapters.mixed import Served, Sites
from rondo.models.decoder import DecoderLayer, Head
from rondo.models.parts import DenseMlp, GqaAttention, Linear, Norm
from rondo.ops.dispatch import references_only
from rondo.ops.linear import cpu_multiplies_bf16
from rondo.ops.native.layers import PROJECTIONS, DenseLayer, DenseLayers, TokenRows
from rondo.ops.native.product import can_multiply, product


@dataclass(frozen=True)
class CompiledStep:
    """A step whose tokens are alike. `lengths` [T] is how long each one's request is, as in an `Attend`; `served` are
    the adapters whose memory it reads."""

    lengths: Tensor
    rows: TokenRows
    served: Sequence[Served | None] = ()


class CompiledLayers:
    """`sites` are the numbers by which adapters know the model's modules."""

    def __init__(self, model: Decoder, cache: KVCache, sites: Sites | None = None) -> None:
        self.model = model
        self.cache = cache
        self.sites = sites
        self._modules = list(model.modules())
        self._parameters = [(module, name) for module in self._modules for name in module._parameters]
        self._places: list[int] = []
        self._layers: DenseLayers | None = None

    @classmethod
    def of(cls, model: Decoder, cache: KVCache, sites: Sites | None = None) -> CompiledLayers | None:
        """None where some part of the model is not of the kind."""
        compiled = cls(model, cache, sites)
        return compiled if compiled._follow() else None

    def can(self, served: Sequence[Served | None]) -> bool:
        """Whether it can run a step in which requests have these adapters. What hangs on a module (an adapter that is
        attached, an observer) must see its module called."""
        if references_only() or any(one is not None and not one.low_rank for one in served):
            return False
        if any(module._forward_hooks or module._forward_pre_hooks for module in self._modules):
            return False
        return self._follow()

    def _follow(self) -> bool:
        """Weights may move, and become others: then the layers are looked at anew."""
        parameters = (module._parameters[name] for module, name in self._parameters)
        places = [0 if parameter is None else parameter.data_ptr() for parameter in parameters]
        if places != self._places:
            self._layers = _dense_layers(self.model, self.sites)
            self._places = places
        return self._layers is not None

    def __call__(self, tokens: Tensor, positions: Tensor, step: CompiledStep, read: Tensor | None) -> Tensor:
        """As the model's own `trunk`."""
        x: Tensor = self.model.embed(tokens)
        ropes = self.model.rope_tables(positions, step, x.dtype)
        pages = [(layer.keys, layer.values) for layer in self.cache.layers]
        assert self._layers is not None
        return self._layers(x, ropes, step.rows, pages, read)

    def head(self, x: Tensor) -> Tensor:
        """As the model's own."""
        head = self.model.head
        return head.cap(product(head.norm(x), head.out.weight))


def _dense_layers(model: Decoder, sites: Sites | None) -> DenseLayers | None:
    if type(model) is not Decoder or (model.dtype == torch.bfloat16 and cpu_multiplies_bf16()):
        return None
    head = model.head
    if type(head) is not Head or type(head.out) is not Linear or not can_multiply(head.out.weight):
        return None
    layers = [_dense(layer, f"layers.{i}", sites) for i, layer in enumerate(model.layers)]
    whole = [layer for layer in layers if layer is not None]
    if len(whole) < len(layers) or not DenseLayers.fit(whole):
        return None
    return DenseLayers(whole, model.config.norm_eps, model.config.norm_offset)


def _dense(layer: nn.Module, path: str, sites: Sites | None) -> DenseLayer | None:
    """What the layer is made of, if all its parts are plain ones."""
    if type(layer) is not DecoderLayer:
        return None
    attention, mlp = layer.attention, layer.mlp
    if (
        type(attention) is not GqaAttention
        or type(mlp) is not DenseMlp
        or not _is_common(layer, attention, mlp)
    ):
        return None
    parts: dict[str, nn.Module] = {name: getattr(attention, name) for name in "qkvo"}
    parts |= {name: getattr(mlp, name) for name in ("gate", "up", "down")}
    parts |= {name: getattr(layer, name) for name in ("attention_norm", "mlp_norm")}
    if attention.part.qk_norm is not None:
        parts |= {name: getattr(attention, name) for name in ("q_norm", "k_norm")}
    if any(
        type(part) not in (Linear, Norm) or part._parameters.get("weight") is None for part in parts.values()
    ):
        return None
    weights = {
        name if kind == "weight" else f"{name}_bias": tensor
        for name, part in parts.items()
        for kind, tensor in part.named_parameters(recurse=False)
    }
    dense = DenseLayer(attention.spec, attention.part.rope, mlp.gate.out_features, weights)
    if sites is None:
        return dense
    paths = [f"{path}.{'attention' if name in 'qkvo' else 'mlp'}.{name}" for name in PROJECTIONS]
    return replace(dense, sites=tuple(sites.paths[each] for each in paths))


def _is_common(layer: DecoderLayer, attention: GqaAttention, mlp: DenseMlp) -> bool:
    return (
        type(layer.attention_out_norm) is nn.Identity
        and attention.part.qk_norm != "full"
        and mlp.activation == "silu"
        and mlp.gate.bias is None
    )
