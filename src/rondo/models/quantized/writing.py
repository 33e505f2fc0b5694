"""Writing a model quantized here to files for vLLM and transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from rondo.models.decoder import Decoder
from rondo.models.files.mapping import Outgoing, plain_outgoing
from rondo.models.files.safetensors_write import write
from rondo.models.files.slots import Slot, TensorMapping
from rondo.models.quantized.formats import LAYOUTS, NF4_STATE, Made
from rondo.models.quantized.parts import quantized_weights
from rondo.models.quantized.reading import Weight, stacked
from rondo.ops import Quantized

MAX_SHARD_BYTES = 5 * 10**9


def write_into(
    folder: Path, model: Decoder, plain: list[Slot], weights: list[Weight], progress: Callable[[int], None]
) -> None:
    """Writes config.json and safetensors into an existing folder."""
    (folder / "config.json").write_text(json.dumps(model.config.hf, indent=2) + "\n")
    write(folder, outgoing(model, plain, weights), MAX_SHARD_BYTES, progress)


def outgoing(model: Decoder, plain: list[Slot], weights: list[Weight]) -> list[Outgoing]:
    parameters = {name: each.detach() for name, each in model.named_parameters(remove_duplicate=False)}
    tensors = plain_outgoing(plain, parameters)
    held = quantized_weights(model)
    types = [_scale_type(weight, model.dtype) for weight in weights]

    @lru_cache(maxsize=1)
    def written(index: int) -> Made:
        """The tensors of a weight are written one after another, and some share a computation."""
        weight = weights[index]
        layout = LAYOUTS[weight.scheme.format]
        assert layout.write is not None
        return layout.write(weight.scheme, _whole(weight.slot, held), types[index])

    for index, weight in enumerate(weights):
        tensors += _of(weight, partial(written, index), types[index])
    return tensors


def _scale_type(weight: Weight, dtype: torch.dtype) -> torch.dtype:
    halves = weight.scheme.format in ("gptq", "awq") and dtype == torch.float32
    return torch.float16 if halves else dtype


def _of(weight: Weight, written: Callable[[], Made], scale_type: torch.dtype) -> list[Outgoing]:
    def make(ends: str) -> Tensor:
        return written()[ends]()

    return [
        Outgoing(
            weight.module + want.ends,
            want.shapes[0],
            scale_type if want.ends in SCALES else want.dtypes[0],
            partial(make, want.ends),
        )
        for want in weight.wants
        if want.ends in WRITTEN
    ]


SCALES = (".scales", ".weight_scale")
NESTED = (
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
    NF4_STATE,
)
WRITTEN = (".qweight", ".qzeros", ".g_idx", ".weight", *SCALES, *NESTED)


def _whole(slot: Slot, held: dict[str, Quantized]) -> Quantized:
    """A weight of the checkpoint from ours; several of ours may be stacked by rows in one of theirs."""
    parts = [_piece(piece, held) for piece in slot.pieces]
    return parts[0] if len(parts) == 1 else stacked(parts, torch.cat)


def _piece(piece: TensorMapping, held: dict[str, Quantized]) -> Quantized:
    weight = held[piece.param]
    return weight if piece.at is None else weight.expert(piece.at)
