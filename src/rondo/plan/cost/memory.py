"""Memory of each rank by part. Formulas count bytes; two constants are fitted (`calibration.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rondo.plan.cost.calibration import CHUNK_TOKENS, FIXED_BYTES, FRAGMENTATION, LOGITS_BYTES
from rondo.plan.cost.layout import Layout, Policy, StepBatch, microbatches
from rondo.plan.sizes.model import ModelShape

WEIGHT_BYTES = 2
"""Bytes of a weight in computation: bf16, fp16, or bf16 cast to 8 bits for each product."""


SWIGLU_BYTES = {"again": 4, "kernel": 6, "kept": 8}
"""Saved bytes per element of the intermediate width: gate and up; their product too; and the activated gate."""


@dataclass(frozen=True)
class Memory:
    """Peak memory of one rank in bytes; `stage` is the pipeline stage with the highest peak. `host` is the memory on
    the host in addition.
    """

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    working: float
    logits: float
    fragmentation: float
    fixed: float
    host: float = 0.0
    stage: int = 0

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def reserved(self) -> float:
        """Memory reserved by the allocator, as PyTorch reports it."""
        return self.total - self.fixed

    @property
    def total(self) -> float:
        return (
            self.states
            + self.gathered
            + self.activations
            + self.working
            + self.logits
            + self.fragmentation
            + self.fixed
        )


def memory(shape: ModelShape, layout: Layout, policy: Policy, batch: StepBatch) -> Memory:
    """Memory of the rank with the highest peak."""
    stages = {0, min(1, layout.pp - 1), layout.pp - 1}
    return max((of_stage(shape, layout, policy, batch, stage) for stage in stages), key=lambda m: m.total)


def of_stage(shape: ModelShape, layout: Layout, policy: Policy, batch: StepBatch, stage: int) -> Memory:
    held = stage_parameters(shape, layout, stage)
    parameters, gradients, optimizer = states(held, layout, policy)
    gathered = _gathered(shape, held, layout, policy)
    tokens = policy.microbatch * batch.length / layout.cp
    layers = layers_of_stage(shape.layers, layout.pp, stage)
    inside = in_flight(layout, microbatches(layout, policy, batch), stage)
    boundary = 2 * WEIGHT_BYTES * shape.hidden * tokens / _sequence(layout, policy) if layout.pp > 1 else 0.0
    kept = layers * saved_a_layer(shape, layout, policy, batch.length) * tokens
    activations = inside * (kept * (1 - policy.offloaded) + boundary)
    working = _working(shape, layout, policy, batch.length) * tokens
    last = stage == layout.last
    logits = _logits(shape, layout, policy, tokens) if last else 0.0
    asked = parameters + gradients + optimizer + gathered + activations + working + logits
    return Memory(
        parameters,
        gradients,
        optimizer,
        gathered,
        activations,
        working,
        logits,
        asked * (FRAGMENTATION - 1),
        FIXED_BYTES,
        _in_host(held, layout, policy) + inside * kept * policy.offloaded,
        stage,
    )


def layers_of_stage(layers: int, stages: int, stage: int) -> int:
    """Layers of a stage. If the division has a remainder, the first stage, which has the embedding, and then the last
    stages have one layer less.
    """
    whole, rest = divmod(layers, stages)
    return whole + (1 <= stage <= rest)


@dataclass(frozen=True)
class RankParameters:
    """Parameters of one rank before sharding over data-parallel ranks."""

    dense: float
    experts: float

    @property
    def all(self) -> float:
        return self.dense + self.experts


def stage_parameters(shape: ModelShape, layout: Layout, stage: int) -> RankParameters:
    layers = layers_of_stage(shape.layers, layout.pp, stage)
    share = layers / shape.layers
    dense = share * shape.undivided / layout.tp
    if stage == 0:
        dense += shape.vocabulary_parameters / layout.tp
    if stage == layout.last and not (shape.tied and layout.last == 0):
        dense += shape.vocabulary_parameters / layout.tp
    return RankParameters(dense, share * shape.sparse_layers * shape.expert_parameters / layout.ep)


def states(held: RankParameters, layout: Layout, policy: Policy) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and the optimizer."""
    parts = [0.0, 0.0, 0.0]
    for count, shards in ((held.dense, layout.shards), (held.experts, layout.expert_shards)):
        whole, divided = count, count / shards
        if policy.zero == 3:  # the shards are the master weights
            each = (4 * divided, policy.gradient_bytes * divided, (policy.optimizer_bytes - 4) * divided)
        else:
            gradients = policy.gradient_bytes * (divided if policy.zero == 2 else whole)
            if policy.zero:
                gradients += policy.gradient_shard_bytes * divided
            each = (
                WEIGHT_BYTES * whole,
                gradients,
                policy.optimizer_bytes * (divided if policy.zero else whole),
            )
        parts = [part + more for part, more in zip(parts, each)]
    if policy.offload != "none":
        parts[2] = 0.0
    if policy.offload == "all":
        parts[0] = parts[0] if policy.zero < 3 else 0.0
        parts[1] = parts[1] if policy.zero < 2 else 0.0
    return parts[0], parts[1], parts[2]


def _in_host(held: RankParameters, layout: Layout, policy: Policy) -> float:
    if policy.offload == "none":
        return 0.0
    everything_here = sum(states(held, layout, replace(policy, offload="none")))
    return everything_here - sum(states(held, layout, policy))


def _gathered(shape: ModelShape, held: RankParameters, layout: Layout, policy: Policy) -> float:
    """Gathered copies of sharded parameters. With pipeline parallelism all parameters stay gathered and all gradients
    unsharded; otherwise two layers and the head are gathered at a time, with the gradients of one layer.
    """
    if policy.zero < 3:
        return 0.0
    if layout.pp > 1:
        return (WEIGHT_BYTES + 4) * held.all
    layer = (
        shape.undivided / layout.tp + shape.sparse_layers * shape.expert_parameters / layout.ep
    ) / shape.layers
    head = shape.vocabulary_parameters / layout.tp
    return (2 * WEIGHT_BYTES + 4) * layer + WEIGHT_BYTES * head


def in_flight(layout: Layout, count: int, stage: int) -> float:
    """Number of microbatches, in whole stages, with a pending backward pass."""
    stages, pieces = layout.pp, layout.virtual
    if stages == 1:
        return 1
    match layout.schedule:
        case "gpipe":
            return count
        case "interleaved":
            return min(count, (2 * (stages - stage - 1) + (pieces - 1) * stages + 1) / pieces)
        case "zero-bubble":
            return min(count, stages)
        case _:
            return min(count, stages - stage)


def _sequence(layout: Layout, policy: Policy) -> int:
    """Number of ranks over which activations between the products are sharded."""
    return layout.tp if policy.sequence_parallel else 1


def saved_a_layer(shape: ModelShape, layout: Layout, policy: Policy, sequence: int) -> float:
    """Bytes per token that a layer saves for its backward pass."""
    whole = everything(shape, layout, policy, sequence)
    match policy.checkpointing:
        case "none":
            return whole
        case "selective":
            return (_selective_sparse if shape.sparse_layers else _selective)(shape, policy) / layout.tp
        case _:
            kept = 2 * shape.hidden / _sequence(layout, policy)
            return policy.layers_full * kept + (1 - policy.layers_full) * whole


def everything(shape: ModelShape, layout: Layout, policy: Policy, sequence: int) -> float:
    """Bytes per token and layer for a backward pass without recomputation: tensors in bf16, and the logsumexp of
    attention in fp32.
    """
    hidden, wide = shape.hidden, shape.query_width + shape.value_width
    inside: float
    between, inside = (4 + 2 * input_bytes(policy)) * hidden, 2 * wide + 4 * shape.heads
    inside += 2 * wide if shape.latent else 4 * shape.kv_width * layout.tp / min(layout.tp, shape.kv_heads)
    if not shape.gated:
        inside += 4 * shape.intermediate
    elif shape.experts is None:
        inside += SWIGLU_BYTES[policy.swiglu] * shape.intermediate
    else:
        inside += _experts(shape, SWIGLU_BYTES[policy.swiglu])
    if policy.dropout:
        between += 2 * hidden
    if not policy.flash:
        inside += 5 * shape.heads * sequence
    return between / _sequence(layout, policy) + inside / layout.tp


def _experts(shape: ModelShape, factor: int) -> float:
    """Saved bytes of a token's chosen experts, of their inputs and outputs in expert order, and of the shared
    experts.
    """
    experts = shape.experts
    assert experts is not None
    return (
        factor * (experts.chosen * experts.intermediate + experts.shared) + 4 * experts.chosen * shape.hidden
    )


def _selective(shape: ModelShape, policy: Policy) -> float:
    """Saved bytes with selective checkpointing: attention's result with its logsumexp, and every second product."""
    kept = shape.query_width + shape.kv_width + shape.value_width + shape.intermediate
    return 4 * shape.hidden + 2 * kept + 4 * shape.heads


def _selective_sparse(shape: ModelShape, policy: Policy) -> float:
    """Saved bytes with selective checkpointing and experts: the inputs of experts are saved, so that they are sent
    only once; norms, activation functions, outputs of experts and the expansion of latent attention are
    recomputed.
    """
    experts, latent = shape.experts, shape.latent
    assert experts is not None
    if latent is None:
        attention = shape.query_width + 2 * shape.kv_width
    else:
        attention = (latent.q_rank or shape.query_width) + latent.kv_rank + latent.rope_dim
    inner: float = expert_input_bytes(policy) * experts.chosen * shape.hidden
    inner += 4 * (experts.chosen * experts.intermediate + experts.shared)
    return 4 * shape.hidden + 2 * (attention + shape.value_width) + 4 * shape.heads + inner


def input_bytes(policy: Policy) -> int:
    """Bytes of a saved product input used by the weight gradient only: it is saved in the precision of the product."""
    return 2 if policy.precision in ("bf16", "fp16") else 1


def expert_input_bytes(policy: Policy) -> int:
    return input_bytes(policy) if policy.low_experts else 2


def _working(shape: ModelShape, layout: Layout, policy: Policy, sequence: int) -> float:
    """Bytes per token during the backward pass of one layer: recomputed activations and tensors gathered by tensor
    parallelism.
    """
    again = 0.0 if policy.checkpointing == "none" else everything(shape, layout, policy, sequence)
    gathers = 0 if layout.tp == 1 or not policy.sequence_parallel else 2 if policy.overlap else 4
    return again + gathers * WEIGHT_BYTES * shape.hidden


def _logits(shape: ModelShape, layout: Layout, policy: Policy, tokens: float) -> float:
    if policy.loss == "chunked":
        tokens = min(tokens, CHUNK_TOKENS)
    return LOGITS_BYTES[policy.loss] * shape.vocab * tokens / layout.tp
