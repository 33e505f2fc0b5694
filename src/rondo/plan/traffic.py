"""What each rank sends in a step, by axis: bytes, as the published formulas count them."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.plan.layout import Batch, Layout, Policy, microbatches
from rondo.plan.memory import WEIGHT_BYTES, Held, input_bytes, stage_parameters
from rondo.plan.model import Shape


@dataclass(frozen=True)
class Traffic:
    """Bytes one rank sends in a step. `data` is the whole of it where gradients are reduced once a step."""

    data: float
    tensor: float
    pipeline: float
    context: float
    expert: float


def traffic(shape: Shape, layout: Layout, policy: Policy, batch: Batch) -> Traffic:
    count = microbatches(layout, policy, batch)
    tokens = policy.microbatch * batch.length / layout.cp
    layers = shape.layers / layout.pp
    sparse = shape.sparse_layers / layout.pp
    return Traffic(
        data=data_a_round(shape, layout, policy) * (count if gathers_each_time(layout, policy) else 1),
        tensor=tensor_a_layer(shape, layout, policy, tokens) * layers * count,
        pipeline=pipeline_a_microbatch(shape, layout, tokens) * count,
        context=context_a_layer(shape, layout, tokens) * layers * count,
        expert=expert_a_layer(shape, layout, policy, tokens) * sparse * count,
    )


def passes(policy: Policy) -> int:
    """Forward passes' worth: forward, backward, and forward again where all is computed again."""
    return 3 if policy.checkpointing == "full" else 2


def tensor_a_layer(shape: Shape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Gathered and scattered (or reduced) around attention and around the feed-forward part."""
    t = layout.tp
    return passes(policy) * 4 * WEIGHT_BYTES * shape.hidden * tokens * (t - 1) / t


def pipeline_a_microbatch(shape: Shape, layout: Layout, tokens: float) -> float:
    """Activations on, gradients back, at each piece's end."""
    if layout.pp == 1:
        return 0.0
    return 2 * WEIGHT_BYTES * shape.hidden * tokens / layout.tp * layout.virtual


def context_a_layer(shape: Shape, layout: Layout, tokens: float) -> float:
    """Keys and values around a ring, forward and backward, and their gradients."""
    return 3 * (layout.cp - 1) * 2 * WEIGHT_BYTES * shape.kv_width / layout.tp * tokens


def expert_a_layer(shape: Shape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Tokens to their experts and back; on the way there in the precision they are multiplied in."""
    if shape.experts is None or layout.ep == 1:
        return 0.0
    there = passes(policy) - 1
    bytes_ = there * input_bytes(policy) + (passes(policy) * 2 - there) * WEIGHT_BYTES
    each = bytes_ * shape.experts.chosen * shape.hidden
    return each * tokens / layout.tp * (layout.ep - 1) / layout.ep


def gathers_each_time(layout: Layout, policy: Policy) -> bool:
    """Whether data parallelism's traffic is a microbatch's, not a step's."""
    return policy.zero == 3 and layout.pp == 1


def data_a_round(shape: Shape, layout: Layout, policy: Policy) -> float:
    held = stage_parameters(shape, layout, 0)
    return data_of(Held(held.dense, 0.0), layout.shards, policy, layout) + data_of(
        Held(0.0, held.experts), layout.expert_shards, policy, layout
    )


def data_of(held: Held, shards: int, policy: Policy, layout: Layout) -> float:
    """Gradients reduced (to shards), parameters gathered."""
    reduced, gathered = policy.reduce_bytes, policy.gather_bytes
    if policy.zero == 0:
        each = 2 * reduced
    elif gathers_each_time(layout, policy):
        each = 2 * gathered + reduced
    else:
        each = gathered + reduced
    return each * held.all * (shards - 1) / shards
