"""Compiled CPU step: one call per step for models of the common architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rondo.engine.kv.cache import KVCache
from rondo.engine.runner.model_guard import Watched
from rondo.models import Decoder
from rondo.models.adapters.mixed import AdapterWeights, Sites
from rondo.models.decoder import DecoderLayer, Embed, Head
from rondo.models.parts import DenseMlp, GqaAttention, Linear, Norm
from rondo.models.quantized.parts import QuantizedLinear
from rondo.ops.attention.pages import Pages
from rondo.ops.dispatch import references_only
from rondo.ops.gemm.quantized import Quantized
from rondo.ops.native.decoder.layers import PROJECTIONS, DenseDecoder, DenseLayer, Ends, TokenRows
from rondo.ops.native.gemm.linear import takes_bf16


@dataclass(frozen=True)
class CompiledStep:
    """A step whose tokens are all handled alike. `served` holds references to the adapters whose memory it reads."""

    rows: TokenRows
    served: Sequence[AdapterWeights | None] = ()


class CompiledDecoder:
    """Compiled version of a decoder. `sites` numbers the modules that adapters add to."""

    def __init__(self, model: Decoder, cache: KVCache, sites: Sites | None = None) -> None:
        self.model = model
        self.cache = cache
        self.sites = sites
        self.by_length = any(spec.by_length for spec in model.ropes)
        """Whether rotary embeddings depend on the length of a token's request."""
        self._watched = Watched(model)
        self._decoder: DenseDecoder | None = None

    @classmethod
    def of(cls, model: Decoder, cache: KVCache, sites: Sites | None = None) -> CompiledDecoder | None:
        """The compiled decoder, or None if a part of the model is not supported."""
        compiled = cls(model, cache, sites)
        return compiled if compiled._follow() else None

    def can(self, served: Sequence[AdapterWeights | None]) -> bool:
        """Whether it can run a step with these adapters."""
        if references_only() or any(one is not None and not one.low_rank for one in served):
            return False
        if self._watched.hooked:
            return False
        return self._follow()

    def _follow(self) -> bool:
        """Rebuilds the compiled decoder if the weights have moved or were replaced."""
        if self._watched.moved():
            self._decoder = _dense_decoder(self.model, self.cache.group_of, self.sites)
        return self._decoder is not None

    def logits(self, step: CompiledStep, read: Tensor | None) -> Tensor:
        """Logits of the tokens `read`, or of all tokens."""
        assert self._decoder is not None
        return self._cap(self._decoder.logits(step.rows, self._pages, read))

    def trunk(self, step: CompiledStep, read: Tensor | None) -> Tensor:
        """Equivalent of the model's `trunk`."""
        assert self._decoder is not None
        return self._decoder.trunk(step.rows, self._pages, read)

    def head(self, x: Tensor) -> Tensor:
        """Equivalent of the model's `head`."""
        assert self._decoder is not None
        return self._cap(self._decoder.head(x))

    def _cap(self, logits: Tensor) -> Tensor:
        """Applies the soft cap in the model's own type, like the model."""
        head = self.model.head
        return logits if head.softcap is None else head.cap(logits.to(self.model.dtype)).float()

    @property
    def _pages(self) -> list[tuple[Pages, Pages]]:
        return [(layer.keys, layer.values) for layer in self.cache.layers]


def _dense_decoder(model: Decoder, groups: Sequence[int], sites: Sites | None) -> DenseDecoder | None:
    if type(model) is not Decoder or (model.dtype == torch.bfloat16 and not _takes_bf16(model)):
        return None
    embed, head = model.embed, model.head
    if type(embed) is not Embed or type(head) is not Head or type(head.norm) is not Norm:
        return None
    out = _weights("head", head.out)
    if list(out) != ["head"]:
        return None
    layers = [
        _dense(layer, f"layers.{i}", group, sites)
        for i, (layer, group) in enumerate(zip(model.layers, groups, strict=True))
    ]
    whole = [layer for layer in layers if layer is not None]
    ends = Ends(embed.weight, embed.scale, head.norm.weight, out["head"])
    if len(whole) < len(layers) or not DenseDecoder.fits(whole, ends):
        return None
    return DenseDecoder(whole, ends, model.config.norm_eps, model.config.norm_offset)


def _takes_bf16(model: Decoder) -> bool:
    """Whether bfloat16 is supported: by the CPU, or because of quantized weights, for which torch has no faster
    product."""
    return takes_bf16() or any(type(module) is QuantizedLinear for module in model.modules())


def _dense(layer: nn.Module, path: str, group: int, sites: Sites | None) -> DenseLayer | None:
    """The layer as a `DenseLayer`, or None if one of its parts is not a plain one."""
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
    held = [_weights(name, part) for name, part in parts.items()]
    weights = {name: weight for each in held for name, weight in each.items()}
    if not all(held):
        return None
    dense = DenseLayer(attention.spec, attention.part.rope, mlp.gate.out_features, weights, group=group)
    if sites is None:
        return dense
    paths = [f"{path}.{'attention' if name in 'qkvo' else 'mlp'}.{name}" for name in PROJECTIONS]
    return replace(dense, sites=tuple(sites.paths[each] for each in paths))


def _weights(name: str, part: nn.Module) -> dict[str, Tensor | Quantized]:
    """Weights of a plain part under the names of the compiled layers; empty for other parts."""
    found: dict[str, Tensor | Quantized] = {}
    if type(part) is QuantizedLinear:
        found[name] = part.quantized
    elif type(part) in (Linear, Norm) and (weight := part._parameters.get("weight")) is not None:
        found[name] = weight
    if found and (bias := part._parameters.get("bias")) is not None:
        found[f"{name}_bias"] = bias
    return found


def _is_common(layer: DecoderLayer, attention: GqaAttention, mlp: DenseMlp) -> bool:
    return (
        type(layer.attention_out_norm) is nn.Identity
        and attention.part.qk_norm != "full"
        and mlp.activation == "silu"
        and mlp.gate.bias is None
    )
