"""Reading of a job's initial model, within the memory of its ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from rondo import models
from rondo.models import Decoder
from rondo.models.files.checkpoint import one_type


def read_model(
    folder: Path, dtype: torch.dtype, device: str | torch.device, *, divided: bool = False
) -> Decoder:
    """Loads a model in the type `dtype`, with one exception: a model that ranks will shard is loaded in the type of its
    files, if that is narrower. Then it is mapped, not read: the ranks of a machine share its pages, and each converts
    its own part.
    """
    stored = one_type(folder) if divided else None
    narrower = stored is not None and stored.itemsize < dtype.itemsize
    return models.load(folder, dtype=stored if narrower else dtype, device=device)
