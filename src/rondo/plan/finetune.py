"""Training on one device: memory of full fine-tuning, LoRA and QLoRA, and the settings that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from rondo.base.errors import ConfigError
from rondo.base.units import GIB
from rondo.plan.cost.calibration import FRAGMENTATION
from rondo.plan.cost.cluster import Cluster
from rondo.plan.cost.layout import Checkpointing, Layout, Policy, StepBatch
from rondo.plan.cost.memory import everything, saved_a_layer
from rondo.plan.cost.time import step
from rondo.plan.machine import Device
from rondo.plan.sizes.model import ModelShape

Method = Literal["full", "lora", "qlora"]
Number = Literal["float32", "bfloat16"]
Logits = Literal["whole", "chunked"]
METHODS: tuple[Method, ...] = ("full", "lora", "qlora")
CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")
BYTES: dict[Number, int] = {"float32": 4, "bfloat16": 2}
ROOM = {"cuda": 0.95, "cpu": 0.8}
"""Share of the device's memory for a job."""
FIXED_BYTES = {"cuda": 0.8e9, "cpu": 0.5e9}
"""CUDA context and libraries; the process with its libraries."""
CHUNK_TOKENS = 1024
"""Predictions whose logits exist at the same time with chunked logits."""
LOGIT_COPIES = 3.0
"""Copies in fp32 of the logits: log-probabilities, their gradient, and that of the logits."""
NF4_BYTES = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a weight: 4 bits, 8 bits for 64 weights, and 32 bits for 256 of these scales."""
DEQUANTIZED_BYTES = 8
"""Bytes per element while one weight is dequantized."""
HEAP_FACTOR = 2.0
"""Heap per byte of activations with an adapter on a CPU: small tensors of the adapter are placed into the gaps that
large ones leave (measured, `bench/lora.py`)."""
LEAST_TOKENS = 2048
"""Microbatch below which other ways to save memory are tried first."""
FULL_SHARE, LORA_SHARE = 6, 4
"""Operations per parameter and token: forward, gradients of activations, and of weights."""


@dataclass(frozen=True)
class Tuning:
    """Settings of a training job on one device that determine its memory."""

    method: Method
    dtype: Number = "float32"
    """Type of stored weights (`train.dtype`)."""
    compute: Number = "float32"
    rank: int = 16
    optimizer: Literal["adamw", "muon"] = "adamw"
    checkpointing: Checkpointing = "none"
    logits: Logits = "whole"
    tokens: int = 8192
    """Tokens of a microbatch."""
    length: int = 2048
    reference: bool = False
    """Whether a copy of the initial model stays in memory (DPO with full weights)."""
    kind: Literal["cuda", "cpu"] = "cuda"

    @property
    def policy(self) -> Policy:
        return Policy(
            zero=0,
            microbatch=max(1, self.tokens // self.length),
            checkpointing=self.checkpointing,
            loss="chunked" if self.logits == "chunked" else "plain",
            swiglu="kernel",
            sequence_parallel=False,
        )


@dataclass(frozen=True)
class TuningMemory:
    """Peak memory in bytes, by part."""

    weights: float
    adapters: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    working: float
    logits: float
    overhead: float
    """Allocator's fragmentation, context and libraries."""

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


def linear_parameters(shape: ModelShape) -> int:
    """Parameters of the layers' matrices, which QLoRA quantizes."""
    dense = (shape.layers - shape.sparse_layers) * shape.dense_parameters
    router = shape.hidden * shape.experts.count if shape.experts else 0
    sparse = shape.sparse_layers * (shape.beside_experts - router + shape.expert_parameters)
    return shape.layers * shape.attention_parameters + dense + sparse


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Parameters of a LoRA over all linear modules; in a mixture of experts over attention's only."""
    pairs = [*_attention(shape)]
    if shape.experts is None:
        pairs += [(shape.hidden, shape.intermediate)] * shape.matrices
    return shape.layers * rank * sum(rows + columns for rows, columns in pairs)


def _attention(shape: ModelShape) -> Iterator[tuple[int, int]]:
    hidden, latent = shape.hidden, shape.latent
    yield shape.value_width, hidden
    if latent is None:
        yield from ((hidden, shape.query_width), (hidden, shape.kv_width), (hidden, shape.kv_width))
        return
    query = shape.heads * (latent.nope_dim + latent.rope_dim)
    if latent.q_rank is None:
        yield hidden, query
    else:
        yield from ((hidden, latent.q_rank), (latent.q_rank, query))
    yield hidden, latent.kv_rank + latent.rope_dim
    yield latent.kv_rank, shape.heads * (latent.nope_dim + latent.value_dim)


def trained_parameters(shape: ModelShape, tuning: Tuning) -> int:
    return shape.parameters if tuning.method == "full" else adapter_parameters(shape, tuning.rank)


def memory(shape: ModelShape, tuning: Tuning) -> TuningMemory:
    trained, width = trained_parameters(shape, tuning), BYTES[tuning.compute] / 2
    full = tuning.method == "full"
    each = BYTES[tuning.dtype] if full else 4
    moments = 1 if tuning.optimizer == "muon" and full else 2
    policy, layout = tuning.policy, Layout()
    activations = shape.layers * saved_a_layer(shape, layout, policy, tuning.length) * tuning.tokens * width
    if tuning.kind == "cpu" and not full:
        activations *= HEAP_FACTOR
    working = 0.0
    if tuning.checkpointing != "none":
        working = everything(shape, layout, policy, tuning.length) * tuning.tokens * width
    if tuning.method == "qlora":
        working += DEQUANTIZED_BYTES * _largest(shape)
    logits = min(tuning.tokens, CHUNK_TOKENS) if tuning.logits == "chunked" else tuning.tokens
    found = TuningMemory(
        weights=_weights(shape, tuning),
        adapters=0.0 if full else 4.0 * trained,
        gradients=float(each * trained),
        optimizer=float(each * moments * trained),
        reference=BYTES[tuning.compute] * shape.parameters if tuning.reference and full else 0.0,
        activations=activations,
        working=working,
        logits=4 * LOGIT_COPIES * shape.vocab * logits,
        overhead=0.0,
    )
    return replace(found, overhead=found.total * (FRAGMENTATION - 1) + FIXED_BYTES[tuning.kind])


def _weights(shape: ModelShape, tuning: Tuning) -> float:
    stored = BYTES[tuning.dtype]
    quantized = linear_parameters(shape) if tuning.method == "qlora" else 0
    found = NF4_BYTES * quantized + stored * (shape.parameters - quantized)
    if tuning.compute != tuning.dtype:  # the layers' copy in the compute type
        found += BYTES[tuning.compute] * (shape.parameters - quantized)
    return found


def _largest(shape: ModelShape) -> int:
    """Elements of the largest matrix of a layer."""
    wide = shape.intermediate if shape.experts is None else shape.experts.intermediate
    return shape.hidden * max(wide, shape.query_width)


def largest_microbatch(shape: ModelShape, tuning: Tuning, room: float) -> int:
    """Tokens of the largest microbatch within `room` bytes; 0 if none fits."""
    low, high = 0, 1
    while high < 2**26 and memory(shape, replace(tuning, tokens=high)).total <= room:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = memory(shape, replace(tuning, tokens=middle)).total <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def seconds_per_step(shape: ModelShape, tuning: Tuning, device: Device, tokens: int) -> float | None:
    """Predicted time of a step of `tokens` tokens; None for a device whose rates are unknown."""
    if device.gpu is None:
        return None
    length = min(tuning.length, tokens)
    policy = replace(tuning.policy, microbatch=max(1, min(tuning.tokens, tokens) // length))
    sequences = max(policy.microbatch, tokens // length // policy.microbatch * policy.microbatch)
    batch = StepBatch(sequences, length)
    whole = step(shape, Cluster(device.gpu, 1), Layout(), policy, batch)
    share = 1.0 if tuning.method == "full" else LORA_SHARE / FULL_SHARE
    optimizer = whole.optimizer if tuning.method == "full" else 0.0
    return whole.between + whole.starting + share * whole.products + optimizer


@dataclass(frozen=True)
class Wanted:
    """Settings that the user has made, which a choice leaves alone; None: the planner chooses."""

    methods: Sequence[Method] = METHODS
    dtype: Number | None = None
    compute: Number | None = None
    checkpointing: Checkpointing | None = None
    logits: Logits | None = None
    tokens: int | None = None
    rank: int = 16
    optimizer: Literal["adamw", "muon"] = "adamw"
    length: int = 2048
    most_tokens: int = 8192
    reference: bool = False


@dataclass(frozen=True)
class Fit:
    """A choice. `room` is the memory that it may use, `rejected` the requirement of each method that did not fit."""

    tuning: Tuning
    memory: TuningMemory
    room: float
    rejected: dict[Method, float]


def fit(shape: ModelShape, device: Device, wanted: Wanted) -> Fit:
    """The fastest settings that fit, in this order: full fine-tuning, LoRA, QLoRA; without recomputation; with large
    microbatches. If nothing fits, the error has the smallest requirement.
    """
    room = ROOM[device.kind] * device.memory
    rejected: dict[Method, float] = {}
    for method in wanted.methods:
        least = float("inf")
        for tuning in _candidates(method, device, wanted):
            need = memory(shape, tuning)
            if need.total <= room:
                return Fit(tuning, need, room, rejected)
            least = min(least, need.total)
        rejected[method] = least
    method = min(rejected, key=lambda name: rejected[name])
    weights = {"full": "full weights", "lora": "LoRA", "qlora": "QLoRA"}[method]
    raise ConfigError(
        f"{shape.name} does not fit: {device.name} has {room / GIB:.1f} GiB for a job, and the smallest requirement is "
        f"{rejected[method] / GIB:.1f} GiB ({weights}, one row of {wanted.length:,} tokens). Use a smaller model, a "
        "lower train.max_length, or a device with more memory: `rondo plan MODEL --qlora --gpu NAME`.",
        param="train.model",
        code="does_not_fit",
    )


def _candidates(method: Method, device: Device, wanted: Wanted) -> Iterator[Tuning]:
    for (dtype, compute), how, logits in product(
        _types(method, device, wanted),
        [wanted.checkpointing] if wanted.checkpointing else CHECKPOINTING,
        [wanted.logits] if wanted.logits else ("whole", "chunked"),
    ):
        last = how == (wanted.checkpointing or "full") and logits == (wanted.logits or "chunked")
        for tokens in _microbatches(wanted, down_to_one_row=last):
            yield Tuning(
                method,
                dtype,
                compute,
                wanted.rank,
                wanted.optimizer,
                how,
                logits,
                tokens,
                wanted.length,
                wanted.reference,
                device.kind,
            )


def _types(method: Method, device: Device, wanted: Wanted) -> list[tuple[Number, Number]]:
    """(stored, compute) types. Trained weights and moments are in fp32; frozen ones need no more than bf16."""
    narrow: list[tuple[Number, Number]] = [("bfloat16", "bfloat16")]
    if method == "full":
        found: list[tuple[Number, Number]] = [("float32", "bfloat16" if device.bf16 else "float32")]
    elif device.bf16:
        found = narrow
    else:
        found = [("float32", "float32"), *narrow]
    if wanted.dtype is not None:
        found = [
            (wanted.dtype, found[0][1] if wanted.dtype == "float32" and method == "full" else wanted.dtype)
        ]
    if wanted.compute is not None:
        found = [(stored, wanted.compute) for stored, _ in found]
    return found


def _microbatches(wanted: Wanted, *, down_to_one_row: bool) -> Iterator[int]:
    """Sizes to try, from large to small: halves down to LEAST_TOKENS, or to one row of the longest document."""
    if wanted.tokens is not None:
        yield wanted.tokens
        return
    least = wanted.length if down_to_one_row else max(wanted.length, LEAST_TOKENS)
    tokens = max(wanted.most_tokens, wanted.length)
    while tokens > least:
        yield tokens
        tokens //= 2
    yield least
