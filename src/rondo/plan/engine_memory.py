"""Memory of an engine of `rondo serve`, from a model's sizes and the engine's settings, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rondo.plan.finetune import FIXED_BYTES
from rondo.plan.sizes.model import ModelShape

DEFAULT_CACHE_BYTES = 2 << 30
"""Default limit of the KV cache of an engine on a CPU."""
ROOM_FOR_PREFIXES = 2
"""Wanted KV cache, as a multiple of a full batch."""
MARGIN = 1.02
"""Room for partial blocks and scales."""
USUAL_CONTEXT = 4096


@dataclass(frozen=True)
class EngineMemory:
    """Bytes by part."""

    weights: int
    cache: int
    overhead: int
    """The process with its libraries, and the activations of one step."""


def token_bytes(shape: ModelShape, value_bytes: int) -> int:
    """KV cache bytes of a token in all layers. Windows are left out, so that the result is an upper bound; the cache of
    latent attention has the projected keys and values."""
    if (latent := shape.latent) is not None:
        width = shape.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
    else:
        width = 2 * shape.head_dim * shape.kv_heads
    return value_bytes * width * (shape.layers + shape.predict_layers)


def engine_memory(
    weights: int,
    shape: ModelShape | None,
    kind: Literal["cpu", "cuda"],
    *,
    value_bytes: int,
    requests: int,
    length: int | None = None,
    step_tokens: int = 2048,
    cache: int | None = None,
) -> EngineMemory:
    """`length` is the longest context and `requests` the largest batch. Without a given `cache` it is as large as a
    full batch and its prefixes need, at most 2 GiB, and at least as large as one request needs. A model without a
    `shape` has a cache of 2 GiB."""
    overhead = FIXED_BYTES[kind]
    if shape is None:
        return EngineMemory(weights, cache or DEFAULT_CACHE_BYTES, round(overhead))
    one = (length or shape.context or USUAL_CONTEXT) * token_bytes(shape, value_bytes) * MARGIN
    wanted = one * requests * ROOM_FOR_PREFIXES
    chosen = cache or math.ceil(max(one, min(wanted, DEFAULT_CACHE_BYTES)))
    widest = max(shape.vocab, 4 * shape.hidden)
    overhead += 4 * (step_tokens * 8 * shape.hidden + requests * widest)
    return EngineMemory(weights, chosen, round(overhead))
