"""Loading of a rank's slice of a checkpoint. Rows of a stored tensor are views of the mapped file, columns are copied,
and no other data is read.
"""

from __future__ import annotations

from pathlib import Path

import torch

from rondo.base.errors import ModelError
from rondo.models import parse, read_config
from rondo.models.files.checkpoint import Progress, fill
from rondo.parallel.tensor.group import RankGroup
from rondo.parallel.tensor.shard import ShardedDecoder


def load(
    folder: str | Path,
    group: RankGroup,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> ShardedDecoder:
    """As `rondo.models.load`, for one rank of a group."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    with torch.device("meta"):
        model = ShardedDecoder(parse(read_config(folder)), group)
    fill(model, model.slots(), folder, dtype, device, progress)
    return model
