"""Bytes that each rank sends in a step, by parallelism, with the published formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rondo.plan.cost.layout import Layout, Policy, StepBatch, microbatches
from rondo.plan.cost.memory import WEIGHT_BYTES, expert_input_bytes, stage_parameters
from rondo.plan.sizes.model import ModelShape

RING_GRADIENT_BYTES = 4
"""Bytes of a gradient element that is accumulated around the ring."""


@dataclass(frozen=True)
class Traffic:
    """Bytes sent by one rank in a step."""

    data: float
    tensor: float
    pipeline: float
    context: float
    expert: float


def traffic(shape: ModelShape, layout: Layout, policy: Policy, batch: StepBatch) -> Traffic:
    count = microbatches(layout, policy, batch)
    tokens = policy.microbatch * batch.length / layout.cp
    layers = shape.layers / layout.pp
    sparse = shape.sparse_layers / layout.pp
    rounds = data_rounds(shape, layout, policy)
    return Traffic(
        data=rounds.each * count + rounds.once,
        tensor=tensor_a_layer(shape, layout, policy, tokens) * layers * count
        + tensor_ends(shape, layout, tokens) * count
        + tensor_norms(shape, layout) * (count if policy.zero > 1 else 1),
        pipeline=pipeline_a_microbatch(shape, layout, tokens) * count,
        context=context_a_layer(shape, layout, policy, tokens) * layers * count,
        expert=expert_a_layer(shape, layout, policy, tokens) * sparse * count,
    )


def passes(policy: Policy) -> int:
    """Number of forward-equivalent passes: forward, backward, and a second forward with full checkpointing."""
    return 3 if policy.checkpointing == "full" else 2


def tensor_a_layer(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Bytes per layer: all-gather and reduce-scatter around attention and around the feed-forward part, in forward
    and backward. Gathered inputs are not saved but gathered again for the weight gradients; a recomputed layer
    repeats its communication except for the last reduce-scatter. Without sequence parallelism, all-reduces send as
    much as both, and their results are saved.
    """
    if not policy.sequence_parallel:
        times = passes(policy) * 4.0
    else:
        again = {"none": 0.0, "selective": 1.0, "full": policy.layers_full}[policy.checkpointing]
        times = 8 + 3 * again + 2 * (1 - again)
    return times * _rows(shape, layout, tokens)


def tensor_ends(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Bytes of a microbatch on the first and the last stage: the embedding's sum, the head's input, and two numbers
    per prediction.
    """
    ends = 4 if layout.pp == 1 else 2
    return ends * _rows(shape, layout, tokens) + 2 * 4 * tokens * (layout.tp - 1)


def tensor_norms(shape: ModelShape, layout: Layout) -> float:
    """Bytes of the norms' gradients, which are summed because each rank has the gradients of its own tokens only."""
    norms = 2 * shape.layers / layout.pp + 1
    return 2 * WEIGHT_BYTES * norms * shape.hidden * (layout.tp - 1) / layout.tp


def _rows(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Bytes of one all-gather or reduce-scatter of the hidden states."""
    return WEIGHT_BYTES * shape.hidden * tokens * (layout.tp - 1) / layout.tp


def pipeline_a_microbatch(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Bytes of the rank with the most traffic: activations forward and gradients back at the end of each piece. A
    zero-bubble schedule passes down the stages and back up, and turns within the last one.
    """
    if layout.pp == 1:
        return 0.0
    turns = layout.schedule == "zero-bubble"
    times = 2 * (2 if turns else layout.virtual)
    if layout.pp == 2:  # both ranks have an end of the model
        times -= 2 if turns else 1
    return times * WEIGHT_BYTES * shape.hidden * tokens / layout.tp


def context_a_layer(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Bytes per layer. Ring: keys and values around the ring in each pass, including backward, and their gradients in
    fp32. Ulysses: an all-to-all of queries, keys and values in each pass, of outputs back, and of all gradients.
    """
    # of a key head and its values, or of a query head and its outputs
    each = (shape.head_dim + shape.value_width // shape.heads) * tokens
    heads, keys = shape.heads / layout.tp, shape.kv_heads / layout.tp
    if layout.cp_method == "ring":
        sent = passes(policy) * WEIGHT_BYTES + RING_GRADIENT_BYTES
        return (layout.cp - 1) * keys * each * sent
    spread = _spread(math.ceil(keys), math.floor(heads), layout.cp)
    return (layout.cp - 1) / layout.cp * (heads + spread) * each * passes(policy) * WEIGHT_BYTES


def _spread(keys: int, heads: int, ranks: int) -> int:
    """Number of key heads to send, including copies if ranks share a head."""
    if keys % ranks == 0:
        return keys
    return ranks if ranks % keys == 0 else heads


def expert_a_layer(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Bytes of tokens sent to their experts and back; in the direction of the experts in the precision of the
    products.
    """
    if shape.experts is None or layout.ep == 1:
        return 0.0
    there = passes(policy) - 1
    bytes_ = there * expert_input_bytes(policy) + (passes(policy) * 2 - there) * WEIGHT_BYTES
    each = bytes_ * shape.experts.chosen * shape.hidden
    return each * tokens / layout.tp * (layout.ep - 1) / layout.ep


@dataclass(frozen=True)
class Rounds:
    """Bytes of data parallelism: per microbatch, and once per step."""

    each: float
    once: float


def data_rounds(shape: ModelShape, layout: Layout, policy: Policy) -> Rounds:
    """Gradients are reduced (to shards), parameters gathered. Sharded gradients are reduced for each microbatch, and
    sharded parameters gathered twice for each; with pipeline parallelism, gathered parameters and accumulated
    gradients stay whole.
    """
    held = stage_parameters(shape, layout, 0)
    sent = _shared(held.dense, layout.shards) + _shared(held.experts, layout.expert_shards)
    reduced, gathered = policy.reduce_bytes * sent, policy.gather_bytes * sent
    match policy.zero:
        case 0:
            return Rounds(0.0, 2 * reduced)
        case 2:
            return Rounds(reduced, gathered)
        case 3 if layout.pp == 1:
            # Embedding and head are used at both ends of a pass, so they stay gathered from forward to backward.
            ends = shape.vocabulary_parameters * (1 if shape.tied else 2) / layout.tp
            return Rounds(2 * gathered - policy.gather_bytes * _shared(ends, layout.shards) + reduced, 0.0)
        case _:
            return Rounds(0.0, gathered + reduced)


def _shared(parameters: float, ranks: int) -> float:
    """Bytes that a rank sends in one ring pass, per byte of a parameter."""
    return parameters * (ranks - 1) / ranks
