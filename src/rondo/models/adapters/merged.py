"""Export of a LoRA over a base that was quantized in memory: whole weights, dequantized and merged one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial

import torch
from torch import Tensor

from rondo.base.errors import ModelError
from rondo.models.adapters.attached import adapter_of
from rondo.models.adapters.lora import Lora
from rondo.models.decoder import Decoder
from rondo.models.files.mapping import Outgoing, joined
from rondo.models.quantized.parts import quantized_weights
from rondo.models.quantized.scheme import FIELD

RECENT = 4
"""Weights that stay in memory: the slots of experts read the same stacked ones in turn."""


def is_quantized_base(model: Decoder) -> bool:
    """Whether the layers are quantized in memory, but not in the model's files."""
    return model.config.quantization is not None and FIELD not in (model.config.hf or {})


def merged_outgoing(model: Decoder) -> list[Outgoing]:
    """The tensors of the merged checkpoint: the weights with which the adapter was trained, plus the adapter."""
    adapter = adapter_of(model)
    if adapter is not None and not all(isinstance(part, Lora) for part in adapter.parts.values()):
        raise ModelError("only a LoRA can be merged with its base")
    parameters = _Merged(model)
    shapes = {name: torch.empty(shape, device="meta") for name, shape in parameters.shapes.items()}
    return [
        Outgoing(slot.name, slot.shape_for(shapes), model.dtype, partial(joined, slot, parameters))
        for slot in model.slots()
    ]


class _Merged(Mapping[str, Tensor]):
    """Parameters by name, each computed when it is read."""

    def __init__(self, model: Decoder) -> None:
        adapter = adapter_of(model)
        self._plain = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}
        self._quantized = quantized_weights(model)
        self._parts = {} if adapter is None else adapter.parts
        self._dtype = model.dtype
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._plain.items()}
        self.shapes |= {name: weight.shape for name, weight in self._quantized.items()}
        self._made = lru_cache(RECENT)(self._make)

    @torch.no_grad()
    def _make(self, name: str) -> Tensor:
        weight = self._quantized[name].dequantized()
        part = self._parts.get(name.removesuffix(".weight"))
        return (weight if part is None else weight + part.delta()).to(self._dtype)  # type: ignore[operator]

    def __getitem__(self, name: str) -> Tensor:
        return self._made(name) if name in self._quantized else self._plain[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
