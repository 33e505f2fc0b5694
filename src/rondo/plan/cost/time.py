"""Step time: products at their achieved rate, memory traffic between them, exposed communication, and the pipeline
bubble. The constants are in `calibration.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from rondo.plan.cost import calibration as known
from rondo.plan.cost.cluster import Cluster
from rondo.plan.cost.layout import Layout, Policy, StepBatch, microbatches
from rondo.plan.cost.memory import everything, saved_a_layer, stage_parameters
from rondo.plan.cost.traffic import (
    context_a_layer,
    data_rounds,
    expert_a_layer,
    pipeline_a_microbatch,
    tensor_a_layer,
)
from rondo.plan.sizes.model import ModelShape


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by part; hidden communication is not included."""

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


def step(shape: ModelShape, cluster: Cluster, layout: Layout, policy: Policy, batch: StepBatch) -> StepTime:
    return _Clock(shape, cluster, layout, policy, batch).step()


def bubble_share(layout: Layout, count: int) -> float:
    """Ratio of idle time to busy time. A zero-bubble schedule is idle only at the ends of a step: each stage starts
    after the previous stage's forward pass of one piece, which is half a stage.
    """
    if layout.pp == 1:
        return 0.0
    if layout.schedule == "zero-bubble":
        return (layout.pp - 1) / (6 * count)
    return (layout.pp - 1) / (layout.virtual * count)


def slowest(layers: int, layout: Layout) -> float:
    """Ratio of the layers of the largest piece to the average, because all ranks wait for the largest."""
    pieces = layout.pieces
    return math.ceil(layers / pieces) * pieces / layers if layout.pp > 1 else 1.0


@dataclass(frozen=True)
class _Clock:
    """Times of one rank; per microbatch unless the name has another unit."""

    shape: ModelShape
    cluster: Cluster
    layout: Layout
    policy: Policy
    batch: StepBatch

    def step(self) -> StepTime:
        count = microbatches(self.layout, self.policy, self.batch)
        parts = {
            "products": self._products(),
            "between": self._between(),
            "starting": self._starting(),
            "tensor": self._tensor() * self._layers,
            "context": self._context() * self._layers,
            "expert": self._expert() * self._sparse_layers,
        }
        busy = sum(parts.values())
        return StepTime(
            **{name: seconds * count for name, seconds in parts.items()},
            pipeline=self._pipeline() * count,
            bubble=busy * count * bubble_share(self.layout, count),
            data=self._data_of_step(count, hidden=busy),
            optimizer=self._optimizer_of_step(),
            offload=_shown(self._offload(), busy) * count,
        )

    @cached_property
    def _tokens(self) -> float:
        return self.policy.microbatch * self.batch.length / self.layout.cp

    @cached_property
    def _uneven(self) -> float:
        return slowest(self.shape.layers, self.layout)

    @cached_property
    def _layers(self) -> float:
        return self.shape.layers / self.layout.pp * self._uneven

    @cached_property
    def _sparse_layers(self) -> float:
        return self.shape.sparse_layers / self.layout.pp * self._uneven

    @cached_property
    def _half_rate(self) -> float:
        """Operations per second in 16 bits."""
        return self.cluster.gpu.peak("bf16") * self.cluster.gpu.sustained * known.PRODUCT_SHARE

    @cached_property
    def _rate(self) -> float:
        gpu, precision = self.cluster.gpu, self.policy.precision
        share = gpu.sustained * known.PRODUCT_SHARE * known.LOW_SHARE.get(precision, 1.0)
        return gpu.peak(precision) * share

    @cached_property
    def _attention_rate(self) -> float:
        ring = known.RING_SHARE if self.layout.cp > 1 and self.layout.cp_method == "ring" else 1.0
        return self._half_rate * known.ATTENTION_SHARE * ring

    @cached_property
    def _memory_rate(self) -> float:
        return self.cluster.gpu.bandwidth * known.BANDWIDTH_SHARE

    def _link(self, ranks: int, stride: int = 1) -> float:
        return self.cluster.link(ranks, stride) * known.LINK_SHARE

    def _products(self) -> float:
        """Seconds of matrix products; attention and head are computed in 16 bits."""
        shape = self.shape
        head = (1 + shape.predict_layers) * shape.vocabulary_parameters
        chosen = _chosen(shape)
        width = max(shape.intermediate, shape.hidden) / self.layout.tp
        seconds = (shape.active_parameters - head - chosen) * _narrow(width) / self._rate
        if shape.experts is not None:
            rate = self._rate if self.policy.low_experts else self._half_rate
            seconds += chosen * _narrow(shape.experts.intermediate) / rate
        again, attended = self._again()
        products = 2 * seconds * (3 + again) + 6 * head / self._half_rate
        forward = shape.attention_flops(self.batch.length) / self._attention_rate
        attention = forward * (known.ATTENTION_PASSES + attended)
        return (products + attention) * self._tokens / (self.layout.tp * self.layout.pp) * self._uneven

    def _again(self) -> tuple[float, float]:
        """Additional forward passes by recomputation, of products and of attention."""
        match self.policy.checkpointing:
            case "full":
                return self.policy.layers_full, self.policy.layers_full
            case "selective":
                sparse = self.shape.sparse_layers > 0
                return (known.SELECTIVE_SPARSE_AGAIN if sparse else known.SELECTIVE_AGAIN), 0.0
            case _:
                return 0.0, 0.0

    def _between(self) -> float:
        """Memory-bound operations: norms, rotary embeddings, activations, sums, casts, and the processing of logits."""
        kept_all = replace(self.policy, swiglu="kept")
        layer = known.PASSES * everything(self.shape, self.layout, kept_all, self.batch.length)
        match self.policy.checkpointing:
            case "full":
                layer *= 1 + known.BETWEEN_AGAIN["full"] * self.policy.layers_full
            case kind:
                layer *= 1 + known.BETWEEN_AGAIN[kind]
        layers = self._layers + self.shape.predict_layers / self.layout.pp
        logits = 2 * known.LOGITS_BYTES["plain"] * self.shape.vocab / (self.layout.tp * self.layout.pp)
        return (layer * layers + logits) * self._tokens / self._memory_rate

    def _starting(self) -> float:
        seconds = known.LAYER_SECONDS * self._layers + known.EXPERT_LAYER_SECONDS * self._sparse_layers
        if self.policy.checkpointing == "full":
            seconds *= 1 + self.policy.layers_full / 3
        return seconds * (known.CAPTURED if self.policy.captured else 1)

    def _tensor(self) -> float:
        """Exposed seconds per layer."""
        sent = tensor_a_layer(self.shape, self.layout, self.policy, self._tokens)
        shown = 1 - known.HIDDEN_TENSOR if self.policy.overlap else 1.0
        return sent / self._link(self.layout.tp) * shown

    def _context(self) -> float:
        """Seconds per layer: Ulysses' all-to-all, or the part of the ring's traffic that attention does not hide."""
        if self.layout.cp == 1:
            return 0.0
        sent = context_a_layer(self.shape, self.layout, self.policy, self._tokens)
        seconds = sent / self._link(self.layout.cp, self.layout.tp)
        if self.layout.cp_method == "ulysses":
            return seconds
        flops = known.ATTENTION_PASSES * self.shape.attention_flops(self.batch.length) / self.shape.layers
        attention = flops * self._tokens / self.layout.tp / self._attention_rate
        return max(0.0, seconds - attention)

    def _expert(self) -> float:
        """Seconds per layer. Across nodes a token is sent once to each destination node, within a node once to each
        of its experts.
        """
        experts, ep = self.shape.experts, self.layout.ep
        if experts is None or ep == 1:
            return 0.0
        sent = expert_a_layer(self.shape, self.layout, self.policy, self._tokens)
        nodes = max(1, ep // self.cluster.node)
        distinct = nodes * (1 - (1 - 1 / nodes) ** experts.chosen) / experts.chosen
        inside = sent / self.cluster.gpu.link
        outside = sent * (1 - 1 / nodes) * distinct / self.cluster.gpu.network
        shown = known.EXPERTS_SHOWN if self.policy.expert_overlap else 1.0
        return max(inside, outside) / known.LINK_SHARE * shown

    def _pipeline(self) -> float:
        sent = pipeline_a_microbatch(self.shape, self.layout, self._tokens)
        return sent / self._link(2, self.layout.ranks // self.layout.pp)

    def _data_of_step(self, count: int, hidden: float) -> float:
        """Exposed seconds of gathering and reducing: of every microbatch, and once per step."""
        rounds = data_rounds(self.shape, self.layout, self.policy)
        link = self._link(self.layout.shards, self.layout.tp)
        return _shown(rounds.each / link, hidden) * count + _shown(rounds.once / link, hidden)

    def _optimizer_of_step(self) -> float:
        """Seconds of the optimizer: each state is read and written once. With offload, host memory limits the rate,
        gradients are copied to the host and parameters back.
        """
        policy, count = self.policy, self._own_parameters(divided=self.policy.zero > 0)
        touched = 2 * (policy.optimizer_bytes + policy.gradient_bytes) * count
        if policy.offload == "none":
            return touched / self._memory_rate
        moved = (policy.gradient_bytes + policy.gather_bytes) * count
        return touched / known.HOST_BANDWIDTH + moved / self._host_link

    def _offload(self) -> float:
        """Seconds of offload: activations to the host and back, parameters from the host twice, gradients to the
        host.
        """
        policy, moved = self.policy, 0.0
        if policy.offloaded:
            kept = saved_a_layer(self.shape, self.layout, policy, self.batch.length)
            moved += 2 * policy.offloaded * kept * self._tokens * self.shape.layers / self.layout.pp
        if policy.offload == "all":
            moved += (2 * policy.gather_bytes + policy.gradient_bytes) * self._own_parameters(divided=True)
        return moved / self._host_link

    @property
    def _host_link(self) -> float:
        return self.cluster.gpu.host_link * known.LINK_SHARE

    def _own_parameters(self, *, divided: bool) -> float:
        held = stage_parameters(self.shape, self.layout, 0)
        if not divided:
            return held.all
        return held.dense / self.layout.shards + held.experts / self.layout.expert_shards


def _narrow(width: float) -> float:
    """Slowdown of a product of that width relative to its number of operations."""
    return 1 + known.NARROW / width


def _chosen(shape: ModelShape) -> float:
    """Parameters of a token's chosen experts in all layers."""
    if shape.experts is None:
        return 0.0
    layers = shape.sparse_layers + shape.predict_layers
    return layers * shape.expert_parameters * shape.experts.chosen / shape.experts.count


def _shown(seconds: float, hidden: float) -> float:
    return max(seconds - hidden, known.ALWAYS_SHOWN * seconds)
