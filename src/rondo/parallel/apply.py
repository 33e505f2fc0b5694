"""Transformation of a model without distributed code into the part of one rank, in a fixed order."""

from __future__ import annotations

from rondo.models.decoder import Decoder
from rondo.parallel.config import MemoryConfig
from rondo.parallel.data import shard
from rondo.parallel.experts import spread
from rondo.parallel.pipeline.pieces import keep_own, own_pieces
from rondo.parallel.pipeline.stage import Stage
from rondo.parallel.pipeline.tie import part_ends
from rondo.parallel.precision import computing_type, kept_type, multiply_in_fp8
from rondo.parallel.ranks.mesh import Mesh
from rondo.parallel.recompute import keep_less
from rondo.parallel.tensor.tensor import divide


def parallelize(model: Decoder, mesh: Mesh, memory: MemoryConfig) -> list[Stage]:
    """Parallelizes the model in place; returns this rank's pieces in model order: one, or possibly several in a
    pipeline.
    """
    given = model.dtype
    kept = kept_type(given, memory)
    computing = computing_type(kept, memory.precision)
    gathered = None if computing == kept else computing
    in_host = memory.offload == "all" and mesh.device.type == "cuda"
    pieces = part(model, mesh, memory)
    for piece in pieces:
        shard(piece, mesh, gathered, in_host=in_host, kept=None if kept == given else kept)
    return pieces


def part(model: Decoder, mesh: Mesh, memory: MemoryConfig) -> list[Stage]:
    """As `parallelize`, without the sharding of states among the ranks that have the same part."""
    multiply_in_fp8(model, memory.precision)
    keep_own(model, mesh)
    # Recomputed layers repeat their all-gathers.
    divide(model, mesh, again=memory.checkpointing == "none")
    spread(model, mesh)
    pieces = own_pieces(model, mesh)
    part_ends(pieces)
    for piece in pieces:
        keep_less(piece.decoder, memory)
    return pieces
