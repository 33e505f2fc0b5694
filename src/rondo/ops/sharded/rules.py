"""Rules for each operation on DTensors, registered with the operations: which shards stay, and which are redistributed.

Shards of rows and heads stay. A sharded weight beside sharded rows is gathered, as in FSDP; a row that is itself
sharded is gathered if the operation needs the whole row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec, packed_attention
from rondo.ops.gemm.linear import linear
from rondo.ops.pointwise.activation import gated
from rondo.ops.pointwise.norm import rms_norm
from rondo.ops.pointwise.rope import RopeSpec, rotate
from rondo.ops.sharded.layout import Dims, ShardLayout, Way, shards_among
from rondo.ops.vocabulary.logprobs import _token_logprobs


def _any_shards(*args: Any, **kwargs: Any) -> bool:
    return shards_among(*args, *kwargs.values())


@linear.fast(_any_shards, first=True)
def linear_on_shards(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    layout = ShardLayout.of(x, weight) if bias is None else ShardLayout.of(x, weight, bias)
    ways = [_linear_way(cut, x.ndim - 1) for cut in layout.cuts()]
    # Of the ranks whose results are summed, only the first adds the bias.
    first = layout.rank([axis for axis, way in enumerate(ways) if way.adds]) == 0

    def op(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias if bias is None or first else _nothing(bias))

    result: Tensor = layout.run(op, ways, (*x.shape[:-1], weight.shape[0]))
    return result


def _nothing(bias: Tensor) -> Tensor:
    """Zeros with a gradient of zeros for the bias, because every rank takes part in the gradient's sum."""
    return bias.masked_fill(torch.ones((), dtype=torch.bool, device=bias.device), 0.0)


def _linear_way(cut: Dims, last: int) -> Way:
    """The layout for x [.., K], weight [N, K] and bias [N]."""
    x, weight = cut[0], cut[1]
    if x is not None and x != last:
        return _of(cut, (x, None, None), x, summed=(1, 2))
    if weight == 0:
        return _of(cut, (None, 0, 0), last, summed=(0,))
    if x == last or weight == 1:
        return _of(cut, (last, 1, None), summed=(2,), adds=True)
    return Way([None] * len(cut))


def _of(
    cut: Dims, inputs: Dims, output: int | None = None, summed: Sequence[int] = (), adds: bool = False
) -> Way:
    """A layout truncated to the number of tensors."""
    return Way(inputs[: len(cut)], output, summed, adds)


@rms_norm.fast(_any_shards, first=True)
def rms_norm_on_shards(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    layout = ShardLayout.of(x, weight)
    whole = x.ndim - 1
    ways = [
        Way((None, None)) if of_x in (None, whole) else Way((of_x, None), of_x, summed=(1,))
        for of_x, _ in layout.cuts()
    ]
    result: Tensor = layout.run(lambda x, weight: rms_norm(x, weight, eps, offset), ways, x.shape)
    return result


@gated.fast(_any_shards, first=True)
def gated_on_shards(kind: str, gate: Tensor, up: Tensor) -> Tensor:
    layout = ShardLayout.of(gate, up)
    cuts = [of_gate if of_gate is not None else of_up for of_gate, of_up in layout.cuts()]
    ways = [Way((cut, cut), cut) for cut in cuts]
    result: Tensor = layout.run(lambda gate, up: gated(kind, gate, up), ways, gate.shape)
    return result


@rotate.fast(_any_shards, first=True)
def rotate_on_shards(spec: RopeSpec, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Tables are sharded like the tokens; all heads use the same tables."""
    layout = ShardLayout.of(x, cos, sin)
    by_cut = {0: Way((0, 0, 0), 0), 1: Way((1, None, None), 1, summed=(1, 2))}
    ways = [by_cut.get(-1 if cut[0] is None else cut[0], Way((None,) * 3)) for cut in layout.cuts()]
    result: Tensor = layout.run(lambda x, cos, sin: rotate(spec, x, cos, sin), ways, x.shape)
    return result


@_token_logprobs.fast(_any_shards, first=True)
def token_logprobs_on_shards(logits: Tensor, tokens: Tensor, scale: Tensor | None, entropy: bool) -> Tensor:
    """Sharded by rows. If the vocabulary is sharded, it is redistributed to whole rows with the same numbers a rank."""
    layout = ShardLayout.of(logits, tokens) if scale is None else ShardLayout.of(logits, tokens, scale)
    of_scale = 0 if scale is not None and scale.shape[0] == logits.shape[0] > 1 else None
    ways = [
        Way((None,) * len(cut)) if cut[0] is None else _of(cut, (0, 0, of_scale), 0, summed=(2,))
        for cut in layout.cuts()
    ]

    def op(logits: Tensor, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        return _token_logprobs(logits, tokens, scale, entropy)

    result: Tensor = layout.run(op, ways, (len(tokens), 2) if entropy else tokens.shape)
    return result


@packed_attention.fast(_any_shards, first=True)
def packed_attention_on_shards(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Sequence[int],
    sinks: Tensor | None = None,
) -> Tensor:
    """Sharded by heads, if each rank has the same number and its query heads share one key head or use whole groups;
    else every rank computes everything."""
    layout = ShardLayout.of(q, k, v) if sinks is None else ShardLayout.of(q, k, v, sinks)
    cuts = layout.cuts()
    axes = [axis for axis, cut in enumerate(cuts) if 1 in cut[:3]]
    ranks = prod(layout.mesh.size(axis) for axis in axes)
    heads, keys = spec.num_heads, spec.num_kv_heads
    if heads % ranks or (keys % ranks and ranks % keys):
        axes, ranks = [], 1
    shared = keys % ranks != 0
    by_heads = (1, None, None, 0) if shared else (1, 1, 1, 0)
    local = replace(spec, num_heads=heads // ranks, num_kv_heads=max(1, keys // ranks))
    own = layout.rank(axes) * keys // ranks

    def op(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        if shared:
            k, v = k[:, own : own + 1], v[:, own : own + 1]
        return packed_attention(local, q, k, v, cu_seqlens, sinks)

    ways = [
        _of(cut, by_heads, 1, summed=(1, 2) if shared else ()) if axis in axes else Way((None,) * len(cut))
        for axis, cut in enumerate(cuts)
    ]
    result: Tensor = layout.run(op, ways, (*q.shape[:2], v.shape[2]))
    return result
