"""Layout of a model over ranks and memory policy of each rank: the variables of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rondo.base.errors import ConfigError
from rondo.plan.cost.cluster import Cluster
from rondo.plan.sizes.model import ModelShape

Schedule = Literal["none", "gpipe", "1f1b", "interleaved", "zero-bubble"]
Checkpointing = Literal["none", "selective", "full"]
Offload = Literal["none", "optimizer", "all"]
Swiglu = Literal["again", "kernel", "kept"]
Loss = Literal["plain", "fused", "chunked"]
ContextMethod = Literal["ulysses", "ring"]


@dataclass(frozen=True)
class Layout:
    """Degrees of each parallelism. `dp` counts copies of the batch: ranks = dp * tp * pp * cp. Experts are
    distributed over `ep` of these ranks.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual: int = 1
    schedule: Schedule = "none"
    cp_method: ContextMethod = "ring"

    @property
    def pieces(self) -> int:
        """Number of pipeline pieces. A zero-bubble schedule passes down the stages and back up, with two pieces per
        stage.
        """
        return self.pp * (2 if self.schedule == "zero-bubble" and self.pp > 1 else self.virtual)

    @property
    def last(self) -> int:
        """The stage with the head; a zero-bubble schedule ends at its first stage."""
        return 0 if self.schedule == "zero-bubble" else self.pp - 1

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shards(self) -> int:
        """Number of ranks with the same parameters, over which a state can be sharded."""
        return self.dp * self.cp

    @property
    def expert_shards(self) -> int:
        return max(1, self.dp * self.cp * self.tp // self.ep)


@dataclass(frozen=True)
class Policy:
    """Memory policy. `zero` 1, 2 and 3 shard the optimizer's state, also gradients, also parameters. `swiglu` selects
    the saved activations: gate and up with recomputation of the rest (`again`), their product too, as in Rondo's
    own kernel (`kernel`), or the activated gate too, as with plain operations (`kept`). `overlap` hides tensor
    parallelism's traffic behind products. `offloaded` is the share of saved activations in host memory.
    """

    zero: Literal[0, 1, 2, 3] = 1
    microbatch: int = 1
    checkpointing: Checkpointing = "none"
    precision: str = "bf16"
    low_experts: bool = True
    """Whether experts are multiplied in that precision too, if it is below 16 bits."""
    offload: Offload = "none"
    loss: Loss = "fused"
    swiglu: Swiglu = "again"
    flash: bool = True
    dropout: bool = False
    sequence_parallel: bool = True
    overlap: bool = True
    expert_overlap: bool = False
    captured: bool = False
    """CUDA graphs replace single kernel launches."""
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    """Master weights and both moments; 8 with moments in bf16 or Muon on matrices, 6 with moments in 8 bits."""
    gradient_shard_bytes: int = 0
    """Bytes of a further fp32 copy of the gradients, sharded like the optimizer's state (DeepSpeed's ZeRO-1)."""
    gather_bytes: int = 2
    reduce_bytes: int = 4
    """Bytes of a gathered parameter and of a reduced gradient."""
    offloaded: float = 0.0
    layers_full: float = 1.0
    """With `full`: the share of recomputed layers."""


@dataclass(frozen=True)
class StepBatch:
    """Batch of one step: `sequences` over all ranks, each of `length` tokens."""

    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.length


def microbatches(layout: Layout, policy: Policy, batch: StepBatch) -> int:
    return batch.sequences // (layout.dp * policy.microbatch)


def check(shape: ModelShape, cluster: Cluster, layout: Layout, policy: Policy, batch: StepBatch) -> None:
    """Raise ConfigError, with the name of the field, for a layout that does not divide or contradicts the policy."""
    for field, reason in problems(shape, cluster, layout, policy, batch):
        raise ConfigError(f"{field}: {reason}.", param=field)


def problems(
    shape: ModelShape, cluster: Cluster, layout: Layout, policy: Policy, batch: StepBatch
) -> Iterator[tuple[str, str]]:
    """Invalid fields, each with the reason."""
    for field in ("dp", "tp", "pp", "cp", "ep", "virtual"):
        if getattr(layout, field) < 1:
            yield field, "must be above 0"
            return
    if policy.microbatch < 1:
        yield "microbatch", "must be above 0"
        return
    yield from _division_of_ranks(cluster, layout)
    yield from _division_of_model(shape, layout)
    yield from _division_of_batch(layout, policy, batch)


def _division_of_ranks(cluster: Cluster, layout: Layout) -> Iterator[tuple[str, str]]:
    if layout.ranks != cluster.gpus:
        product = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp} x cp {layout.cp}"
        yield "gpus", f"{product} is {layout.ranks}, and the cluster has {cluster.gpus}"
    if layout.dp * layout.cp * layout.tp % layout.ep:
        yield "ep", f"{layout.ep} does not divide dp x cp x tp ({layout.dp * layout.cp * layout.tp})"


def _division_of_model(shape: ModelShape, layout: Layout) -> Iterator[tuple[str, str]]:
    tp = layout.tp
    if shape.heads % tp:
        yield "tp", f"{tp} does not divide {shape.heads} heads of {shape.name}"
    elif shape.kv_heads % tp and tp % shape.kv_heads:
        yield "tp", f"{tp} neither divides nor is a multiple of {shape.kv_heads} kv heads of {shape.name}"
    elif layout.cp_method == "ulysses" and shape.heads // tp % layout.cp:
        heads = shape.heads // tp
        yield (
            "cp",
            f"{layout.cp} does not divide the {heads} heads per rank of {shape.name}; use cp_method ring",
        )
    if shape.intermediate % tp:
        yield "tp", f"{tp} does not divide the intermediate width {shape.intermediate} of {shape.name}"
    pieces = layout.pieces
    if pieces > shape.layers + 2:
        field = "pp" if layout.pp > shape.layers else "virtual" if layout.virtual > 1 else "schedule"
        yield (
            field,
            f"{pieces} model chunks are more than the {shape.layers} layers of {shape.name}, embedding and head",
        )
    if layout.virtual > 1 and layout.pp == 1:
        yield "virtual", "needs pp above 1"
    if layout.ep > 1:
        if shape.experts is None:
            yield "ep", f"{shape.name} has no experts"
        elif shape.experts.count % layout.ep:
            yield "ep", f"{layout.ep} does not divide {shape.experts.count} experts of {shape.name}"


def _division_of_batch(layout: Layout, policy: Policy, batch: StepBatch) -> Iterator[tuple[str, str]]:
    each = layout.dp * policy.microbatch
    if batch.sequences % each:
        yield (
            "batch",
            f"dp {layout.dp} x microbatch {policy.microbatch} does not divide {batch.sequences} sequences",
        )
        return
    pieces = layout.cp * (layout.tp if layout.cp > 1 or policy.sequence_parallel else 1)
    if batch.length % pieces:
        yield "seq", f"{batch.length} tokens are not divisible by {pieces} (tp and cp split sequences)"
    if layout.virtual > 1 and microbatches(layout, policy, batch) % layout.pp:
        count = microbatches(layout, policy, batch)
        yield (
            "virtual",
            f"{count} microbatches are not divisible by pp {layout.pp} (required by interleaved)",
        )
