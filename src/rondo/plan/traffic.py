"""What each rank sends in a step, by axis: bytes, as the published formulas count them."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.plan.layout import Batch, Layout, Policy, microbatches
from rondo.plan.memory import WEIGHT_BYTES, input_bytes, stage_parameters
from rondo.plan.model import Shape


@dataclass(frozen=True)
class Traffic:
    """Bytes one rank sends in a step."""

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
    rounds = data_rounds(shape, layout, policy)
    return Traffic(
        data=rounds.each * count + rounds.once,
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


@dataclass(frozen=True)
class Rounds:
    """Data parallelism's bytes: of each microbatch, and of the whole step once."""

    each: float
    once: float


def data_rounds(shape: Shape, layout: Layout, policy: Policy) -> Rounds:
    """Gradients reduced (to shards), parameters gathered. Divided gradients are reduced each time, and divided
    parameters gathered twice each time; but in a pipeline those stay whole, as do the gradients that add up."""
    held = stage_parameters(shape, layout, 0)
    sent = _shared(held.dense, layout.shards) + _shared(held.experts, layout.expert_shards)
    reduced, gathered = policy.reduce_bytes * sent, policy.gather_bytes * sent
    match policy.zero:
        case 0:
            return Rounds(0.0, 2 * reduced)
        case 2:
            return Rounds(reduced, gathered)
        case 3 if layout.pp == 1:
            return Rounds(2 * gathered + reduced, 0.0)
        case _:
            return Rounds(0.0, gathered + reduced)


def _shared(parameters: float, ranks: int) -> float:
    """What a rank sends of each byte of a parameter, once around."""
    return parameters * (ranks - 1) / ranks
