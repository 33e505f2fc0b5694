"""Export of a checkpoint as a model in Hugging Face's layout. It runs tensor by tensor, so that it needs memory for
only a few tensors, and accepts a checkpoint of any layout.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from rondo import models
from rondo.models.architecture import ModelConfig
from rondo.models.files.checkpoint import MAX_SHARD_BYTES
from rondo.models.files.mapping import Outgoing, plain_outgoing
from rondo.models.files.safetensors_write import write
from rondo.models.files.slots import Slot
from rondo.train.checkpoints.states import MODEL

HELD = 4
"""Number of cached parameters: the next tensors use parts of the same parameters, such as a layer's experts."""


def export_checkpoint(config: ModelConfig, checkpoint: str, folder: Path, of: str = MODEL) -> None:
    """Exports into an existing folder; the caller makes the export atomic. `of` selects the weights or their averages,
    which are converted to the weights' type.
    """
    model = models.build(config)
    model.check_whole()
    from rondo.train.checkpoints import dcp

    reader = dcp.Reader(checkpoint)
    names = _first_names(model)
    stored = reader.stored()

    @functools.lru_cache(maxsize=HELD)
    def read(name: str) -> Tensor:
        label = of + name if of + name in stored else MODEL + name
        tensor = torch.empty(stored[label].shape, dtype=stored[label].dtype)
        reader.read({label: tensor})
        return tensor.to(stored[MODEL + name].dtype)

    shapes = {
        name: torch.empty(stored[MODEL + first].shape, dtype=stored[MODEL + first].dtype, device="meta")
        for name, first in names.items()
    }
    (folder / "config.json").write_text(json.dumps(dict(config.hf or {}), indent=2) + "\n")
    tensors = [_later(slot, shapes, lambda name: read(names[name])) for slot in model.slots()]
    write(folder, tensors, MAX_SHARD_BYTES, lambda count: None)


def _later(slot: Slot, shapes: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> Outgoing:
    def make() -> Tensor:
        [whole] = plain_outgoing([slot], {piece.param: read(piece.param) for piece in slot.pieces})
        return whole.make()

    [shape] = plain_outgoing([slot], dict(shapes))
    return Outgoing(shape.name, shape.shape, shape.dtype, make)


def _first_names(model: models.Decoder) -> dict[str, str]:
    """For each name of a parameter, the name under which it is stored: the first one, if it is tied."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
