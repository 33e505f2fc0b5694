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
    def __init__(self, model: Decoder, cache: KVCache, layers: list[DenseLayer]) -> None:
        self.model = model
        self.cache = cache
        self._modules = list(model.modules())
        config = model.config
        self.layers = DenseLayers(layers, config.norm_eps, config.norm_offset)

    @classmethod
    def of(cls, model: Decoder, cache: KVCache, sites: Sites | None = None) -> CompiledLayers | None:
        """None where some part of the model is not of the kind. Adapters know its modules by `sites`."""
        if type(model) is not Decoder or (model.dtype == torch.bfloat16 and cpu_multiplies_bf16()):
            return None
        layers = [_dense(layer, f"layers.{i}", sites) for i, layer in enumerate(model.layers)]
        whole = [layer for layer in layers if layer is not None]
        alike = len(whole) == len(layers) and DenseLayers.fit(whole)
        plain = (
            type(model.head) is Head
            and type(model.head.out) is Linear
            and can_multiply(model.head.out.weight)
        )
        return cls(model, cache, whole) if alike and plain else None

    def can(self, served: Sequence[Served | None]) -> bool:
        """Whether it can run a step in which requests have these adapters. What hangs on a module (an adapter that is
        attached, an observer) must see its module called."""
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)
        return not hooked and not references_only() and all(one is None or one.low_rank for one in served)

    def __call__(self, tokens: Tensor, positions: Tensor, step: CompiledStep, read: Tensor | None) -> Tensor:
        """As the model's own `trunk`."""
        x: Tensor = self.model.embed(tokens)
        ropes = self.model.rope_tables(positions, step, x.dtype)
        pages = [(layer.keys, layer.values) for layer in self.cache.layers]
        return self.layers(x, ropes, step.rows, pages, read)

    def head(self, x: Tensor) -> Tensor:
        """As the model's own."""
        head = self.model.head
        return head.cap(product(head.norm(x), head.out.weight))


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
    if any(type(part) not in (Linear, Norm) for part in parts.values()):
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
