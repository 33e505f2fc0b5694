"""What each rank sends in a step, by axis: bytes, as the published formulas count them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rondo.plan.cost.layout import Layout, Policy, StepBatch, microbatches
from rondo.plan.cost.memory import WEIGHT_BYTES, expert_input_bytes, stage_parameters
from rondo.plan.sizes.model import ModelShape

RING_GRADIENT_BYTES = 4
"""Of a number that ranks add to one after another."""


@dataclass(frozen=True)
class Traffic:
    """Bytes one rank sends in a step."""

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
    """Forward passes' worth: forward, backward, and forward again where all is computed again."""
    return 3 if policy.checkpointing == "full" else 2


def tensor_a_layer(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Gathered and scattered around attention and around the feed-forward part, forward and backward. What was gathered
    is not kept, but gathered again for the weights' gradients; a layer that is computed again does so by itself, all
    but its last scattering. Without sequence parallelism sums go to all, which is as much as both, and are kept."""
    if not policy.sequence_parallel:
        times = passes(policy) * 4.0
    else:
        again = {"none": 0.0, "selective": 1.0, "full": policy.layers_full}[policy.checkpointing]
        times = 8 + 3 * again + 2 * (1 - again)
    return times * _rows(shape, layout, tokens)


def tensor_ends(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Of a microbatch, on the first and on the last stage: the embedding's sums, the head's input, and two numbers for
    each prediction."""
    ends = 4 if layout.pp == 1 else 2
    return ends * _rows(shape, layout, tokens) + 2 * 4 * tokens * (layout.tp - 1)


def tensor_norms(shape: ModelShape, layout: Layout) -> float:
    """Gradients of norms are summed: each rank knows those of its own tokens."""
    norms = 2 * shape.layers / layout.pp + 1
    return 2 * WEIGHT_BYTES * norms * shape.hidden * (layout.tp - 1) / layout.tp


def _rows(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Hidden states, gathered or scattered once."""
    return WEIGHT_BYTES * shape.hidden * tokens * (layout.tp - 1) / layout.tp


def pipeline_a_microbatch(shape: ModelShape, layout: Layout, tokens: float) -> float:
    """Of the rank that sends the most: activations on, gradients back, at each piece's end. A zero-bubble schedule goes
    down the stages and back up, and turns within the last one."""
    if layout.pp == 1:
        return 0.0
    turns = layout.schedule == "zero-bubble"
    times = 2 * (2 if turns else layout.virtual)
    if layout.pp == 2:  # each rank has an end of the model
        times -= 2 if turns else 1
    return times * WEIGHT_BYTES * shape.hidden * tokens / layout.tp


def context_a_layer(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Ring: keys and values around it in each pass, backward too, and their gradients in fp32. Ulysses: queries, keys
    and values exchanged for heads in each pass, outputs back, and all of their gradients."""
    # Of a key head and its values, or of a query head and its outputs.
    each = (shape.head_dim + shape.value_width // shape.heads) * tokens
    heads, keys = shape.heads / layout.tp, shape.kv_heads / layout.tp
    if layout.cp_method == "ring":
        sent = passes(policy) * WEIGHT_BYTES + RING_GRADIENT_BYTES
        return (layout.cp - 1) * keys * each * sent
    spread = _spread(math.ceil(keys), math.floor(heads), layout.cp)
    return (layout.cp - 1) / layout.cp * (heads + spread) * each * passes(policy) * WEIGHT_BYTES


def _spread(keys: int, heads: int, ranks: int) -> int:
    """Key heads that are sent, where ranks share some."""
    if keys % ranks == 0:
        return keys
    return ranks if ranks % keys == 0 else heads


def expert_a_layer(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    """Tokens to their experts and back; on the way there in the precision they are multiplied in."""
    if shape.experts is None or layout.ep == 1:
        return 0.0
    there = passes(policy) - 1
    bytes_ = there * expert_input_bytes(policy) + (passes(policy) * 2 - there) * WEIGHT_BYTES
    each = bytes_ * shape.experts.chosen * shape.hidden
    return each * tokens / layout.tp * (layout.ep - 1) / layout.ep


@dataclass(frozen=True)
class Rounds:
    """Data parallelism's bytes: of each microbatch, and of the whole step once."""

    each: float
    once: float


def data_rounds(shape: ModelShape, layout: Layout, policy: Policy) -> Rounds:
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
            # Embedding and head are used at both ends of a pass, and stay from forward to backward.
            ends = shape.vocabulary_parameters * (1 if shape.tied else 2) / layout.tp
            return Rounds(2 * gathered - policy.gather_bytes * _shared(ends, layout.shards) + reduced, 0.0)
        case _:
            return Rounds(0.0, gathered + reduced)


def _shared(parameters: float, ranks: int) -> float:
    """What a rank sends of each byte of a parameter, once around."""
    return parameters * (ranks - 1) / ranks
