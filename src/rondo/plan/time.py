"""How long a step takes: products at the rate they reach, what lies between them at the memory's, links where nothing
hides them, and the pipeline's bubble. The constants are in `calibration.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rondo.plan import calibration as known
from rondo.plan.cluster import Cluster
from rondo.plan.layout import Batch, Layout, Policy, microbatches
from rondo.plan.memory import everything, saved_a_layer, stage_parameters
from rondo.plan.model import Shape
from rondo.plan.traffic import (
    context_a_layer,
    data_rounds,
    expert_a_layer,
    pipeline_a_microbatch,
    tensor_a_layer,
)


@dataclass(frozen=True)
class Step:
    """Seconds of one step; what is hidden behind something else is not in them."""

    products: float
    between: float
    starting: float
    tensor: float
    context: float
    expert: float
    pipeline: float
    bubble: float
    data: float
    optimizer: float
    offload: float

    @property
    def seconds(self) -> float:
        return float(sum(vars(self).values()))

    @property
    def computing(self) -> float:
        return self.products + self.between + self.starting


def bubble_share(layout: Layout, count: int) -> float:
    """Idle time over working time."""
    if layout.pp == 1 or layout.schedule == "zero-bubble":
        return 0.0
    return (layout.pp - 1) / (layout.virtual * count)


def slowest(layers: int, layout: Layout) -> float:
    """Layers of the largest piece over those of the average one: all wait for it."""
    pieces = layout.pp * layout.virtual
    return math.ceil(layers / pieces) * pieces / layers if layout.pp > 1 else 1.0


def step(shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, batch: Batch) -> Step:
    count = microbatches(layout, policy, batch)
    tokens = policy.microbatch * batch.length / layout.cp
    uneven = slowest(shape.layers, layout)
    layers, sparse = shape.layers / layout.pp * uneven, shape.sparse_layers / layout.pp * uneven
    further = shape.predict_layers / layout.pp

    products = _products(shape, cluster, layout, policy, tokens, batch.length) * count * uneven
    between = (
        _between(shape, cluster, layout, policy, batch.length) * tokens * (layers + further)
        + _logits(shape, cluster, layout, policy) * tokens
    ) * count
    starting = (layers * known.LAYER_SECONDS + sparse * known.EXPERT_LAYER_SECONDS) * count
    starting *= _repeats(policy) * (known.CAPTURED if policy.captured else 1)
    tensor = _tensor(shape, cluster, layout, policy, tokens) * layers * count
    context = _context(shape, cluster, layout, policy, tokens, batch.length) * layers * count
    expert = _expert(shape, cluster, layout, policy, tokens) * sparse * count
    busy = products + between + starting + tensor + context + expert
    pipeline = (
        pipeline_a_microbatch(shape, layout, tokens) * count / (known.LINK_SHARE * _across(cluster, layout))
    )
    return Step(
        products,
        between,
        starting,
        tensor,
        context,
        expert,
        pipeline,
        busy * bubble_share(layout, count),
        _data(shape, cluster, layout, policy, count, busy / count),
        _optimizer(shape, cluster, layout, policy),
        _offload(shape, cluster, layout, policy, batch, busy / count) * count,
    )


def _repeats(policy: Policy) -> float:
    """Work over that of forward and backward alone (3), by what is computed again."""
    match policy.checkpointing:
        case "full":
            return 1 + policy.layers_full / 3
        case _:
            return 1.0


def _products(
    shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, tokens: float, sequence: int
) -> float:
    """Of a microbatch, on the average stage. Attention and the head compute in 16 bits."""
    gpu = cluster.gpu
    share = gpu.sustained * known.PRODUCT_SHARE
    rate = gpu.peak(policy.precision) * share * known.LOW_SHARE.get(policy.precision, 1.0)
    half = gpu.peak("bf16") * share
    head = (1 + shape.predict_layers) * shape.vocabulary_parameters
    chosen = _chosen(shape)
    wide = shape.active_parameters - head - chosen
    wide *= 1 + known.NARROW * layout.tp / max(shape.intermediate, shape.hidden)
    narrow = chosen * (1 + known.NARROW / shape.experts.intermediate) if shape.experts else 0.0
    again, attended = _again(shape, policy)
    flops = 2 * (wide + narrow) * (3 + again) / rate + 6 * head / half
    attention = shape.attention_flops(sequence) * (3.5 + attended) / (half * _attention_share(layout))
    return (flops + attention) * tokens / (layout.tp * layout.pp)


def _chosen(shape: Shape) -> float:
    """Parameters of the experts that a token is sent to, all layers."""
    if shape.experts is None:
        return 0.0
    layers = shape.sparse_layers + shape.predict_layers
    return layers * shape.expert_parameters * shape.experts.chosen / shape.experts.count


def _again(shape: Shape, policy: Policy) -> tuple[float, float]:
    """Forward passes more: of products, and of attention."""
    match policy.checkpointing:
        case "full":
            return policy.layers_full, policy.layers_full
        case "selective":
            return (0.1 if shape.sparse_layers else 0.5), 0.0
        case _:
            return 0.0, 0.0


def _attention_share(layout: Layout) -> float:
    return known.ATTENTION_SHARE * (known.RING_SHARE if layout.cp > 1 else 1)


def _between(shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, sequence: int) -> float:
    """Of a layer and a token: norms, rotations, activations, sums, casts."""
    whole = everything(shape, layout, replace(policy, fused_mlp=False), sequence)
    repeats = {"none": 1.0, "selective": 1.3, "full": 1 + 0.4 * policy.layers_full}[policy.checkpointing]
    return known.PASSES * repeats * whole / (cluster.gpu.bandwidth * known.BANDWIDTH_SHARE)


def _logits(shape: Shape, cluster: Cluster, layout: Layout, policy: Policy) -> float:
    passes = 2 * known.LOGITS_BYTES["plain"]
    return passes * shape.vocab / (layout.tp * layout.pp) / (cluster.gpu.bandwidth * known.BANDWIDTH_SHARE)


def _tensor(shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, tokens: float) -> float:
    link = cluster.link(layout.tp) * known.LINK_SHARE
    seconds = tensor_a_layer(shape, layout, policy, tokens) / link
    return seconds * (1 - known.HIDDEN_TENSOR if policy.overlap else 1)


def _context(
    shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, tokens: float, sequence: int
) -> float:
    """What of the ring's traffic attention does not hide."""
    if layout.cp == 1:
        return 0.0
    link = cluster.link(layout.cp, layout.tp) * known.LINK_SHARE
    rate = cluster.gpu.peak("bf16") * cluster.gpu.sustained * _attention_share(layout)
    attention = 3.5 * shape.attention_flops(sequence) / shape.layers * tokens / layout.tp / rate
    return max(0.0, context_a_layer(shape, layout, tokens) / link - attention)


def _expert(shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, tokens: float) -> float:
    """Between nodes a token goes once to each node that it needs, within one to each of its experts."""
    experts = shape.experts
    if experts is None or layout.ep == 1:
        return 0.0
    sent = expert_a_layer(shape, layout, policy, tokens)
    nodes = max(1, layout.ep // cluster.node)
    apart = 1 - 1 / nodes
    distinct = nodes * (1 - (1 - 1 / nodes) ** experts.chosen) / experts.chosen
    inside = sent / (cluster.gpu.link * known.LINK_SHARE)
    outside = sent * apart * distinct / (cluster.gpu.network * known.LINK_SHARE)
    return max(inside, outside) * (known.EXPERTS_SHOWN if policy.expert_overlap else 1.0)


def _across(cluster: Cluster, layout: Layout) -> float:
    """The link from one pipeline stage to the next."""
    return cluster.link(2, layout.ranks // layout.pp)


def _data(
    shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, count: int, round_seconds: float
) -> float:
    """What of gathering and reducing the computing of a microbatch does not hide: of each one, and once of the last."""
    rounds = data_rounds(shape, layout, policy)
    link = cluster.link(layout.shards, layout.tp) * known.LINK_SHARE
    return _shown(rounds.each / link, round_seconds) * count + _shown(rounds.once / link, round_seconds)


def _shown(seconds: float, hidden: float) -> float:
    return max(seconds - hidden, known.ALWAYS_SHOWN * seconds)


def _optimizer(shape: Shape, cluster: Cluster, layout: Layout, policy: Policy) -> float:
    """Each state is read and written once; in host memory that is slow, and gradients go there, parameters back."""
    held = stage_parameters(shape, layout, 0)
    dense, experts = (layout.shards, layout.expert_shards) if policy.zero else (1, 1)
    count = held.dense / dense + held.experts / experts
    touched = 2 * (policy.optimizer_bytes + policy.gradient_bytes) * count
    if policy.offload == "none":
        return touched / (cluster.gpu.bandwidth * known.BANDWIDTH_SHARE)
    moved = (policy.gradient_bytes + policy.gather_bytes) * count
    return touched / known.HOST_BANDWIDTH + moved / (cluster.gpu.host_link * known.LINK_SHARE)


def _offload(
    shape: Shape, cluster: Cluster, layout: Layout, policy: Policy, batch: Batch, round_seconds: float
) -> float:
    """Of a microbatch: activations to host memory and back, parameters from there twice, gradients to it; hidden as far
    as it takes no longer than computing."""
    moved = 0.0
    if policy.offloaded:
        tokens = policy.microbatch * batch.length / layout.cp
        kept = saved_a_layer(shape, layout, policy, batch.length) * tokens * shape.layers / layout.pp
        moved += 2 * policy.offloaded * kept
    if policy.offload == "all":
        held = stage_parameters(shape, layout, 0)
        own = held.dense / layout.shards + held.experts / layout.expert_shards
        moved += (2 * policy.gather_bytes + policy.gradient_bytes) * own
    seconds = moved / (cluster.gpu.host_link * known.LINK_SHARE)
    return _shown(seconds, round_seconds)
