"""Serving plan: number of replicas, GPUs per replica, and types of weights and cache for a load.

A decode step reads the weights once and the KV cache of each request; a prompt is computed at the rate of products.
With continuous batching a replica alternates between both, so a request costs its prompt and its share of one step
per token of its answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from rondo.base.errors import ConfigError
from rondo.base.units import GIB
from rondo.plan.cost import calibration as known
from rondo.plan.cost.cluster import Cluster
from rondo.plan.sizes.model import ModelShape

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53}
"""Bytes per parameter, including scales."""
CACHE_BYTES = {"bf16": 2, "fp8": 1}
EXACT_FIRST = ("bf16", "fp8", "int8", "int4")
DIVIDED = frozenset({"bf16"})
"""Types of weights that `rondo serve` can shard over several ranks; quantized weights run on one."""
GROUPS = (128, 64, 32, 16, 8)
"""Possible group sizes of 4-bit scales in columns, the usual size first."""
MOST_REQUESTS = 1024
"""Maximum concurrent requests of one replica."""
STEP_TOKENS, STEP_PIECE, MOST_STEP_TOKENS = 2048, 256, 16384


@dataclass(frozen=True)
class Load:
    """Requests per second, each with a prompt and an answer in tokens, and optional targets: maximum seconds to the
    first token and between two tokens. `shared` is the share of prompts that is in the prefix cache.
    """

    rate: float
    prompt: int
    answer: int
    first: float | None = None
    between: float | None = None
    shared: float = 0.0

    def __post_init__(self) -> None:
        for field in ("rate", "prompt", "answer"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"{field} must be above 0.", param=field)
        if not 0 <= self.shared < 1:
            raise ConfigError("shared must be at least 0 and below 1.", param="shared")
        for field in ("first", "between"):
            if (value := getattr(self, field)) is not None and value <= 0:
                raise ConfigError(f"{field} must be above 0.", param=field)

    @property
    def length(self) -> int:
        return self.prompt + self.answer


@dataclass(frozen=True)
class Replica:
    """One engine over `tp` GPUs."""

    shape: ModelShape
    cluster: Cluster
    load: Load
    tp: int
    weights: str = "bf16"
    cache: str = "bf16"

    @cached_property
    def weight_bytes(self) -> float:
        """Weight bytes of one GPU. The embedding and the head stay in 16 bits."""
        vocabulary = self.shape.vocabulary_parameters * (1 if self.shape.tied else 2)
        inner = self.shape.parameters - vocabulary
        return (inner * WEIGHT_BYTES[self.weights] + 2 * vocabulary) / self.tp

    def _of_layer(self) -> int:
        """Cache bytes of one GPU per token and layer."""
        each = CACHE_BYTES[self.cache]
        if (latent := self.shape.latent) is not None:
            return each * (latent.kv_rank + latent.rope_dim)
        return 2 * each * self.shape.head_dim * math.ceil(self.shape.kv_heads / self.tp)

    def request_bytes(self, length: float) -> float:
        """Cache bytes of a request of that length; layers with an attention window store at most the window."""
        windows = self.shape.windows or (None,) * self.shape.layers
        return self._of_layer() * sum(min(length, window or length) for window in windows)

    @cached_property
    def cache_bytes(self) -> float:
        room = self.cluster.gpu.memory * known.CACHE_SHARE - self.weight_bytes - known.SERVING_FIXED_BYTES
        return max(0.0, room)

    @cached_property
    def most_requests(self) -> int:
        """Number of requests of full length that fit."""
        return min(MOST_REQUESTS, int(self.cache_bytes / self.request_bytes(self.load.length)))

    def step_seconds(self, requests: float) -> float:
        """Seconds of a decode step with one token per request."""
        gpu, shape = self.cluster.gpu, self.shape
        read = self._read(requests) / (gpu.bandwidth * known.DECODE_SHARE[self.weights])
        kept = requests * self.request_bytes(self.load.prompt + self.load.answer / 2)
        read += kept / (gpu.bandwidth * known.BANDWIDTH_SHARE)
        computed = 2 * shape.active_parameters * requests / self.tp / self._rate()
        reduced = 0.0
        if self.tp > 1:
            sent = 4 * shape.hidden * requests * (self.tp - 1) / self.tp
            link = self.cluster.link(self.tp) * known.LINK_SHARE
            reduced = 2 * shape.layers * (known.REDUCE_SECONDS + sent / link)
        return max(read, computed) + reduced + shape.layers * known.DECODE_LAYER_SECONDS

    def _read(self, requests: float) -> float:
        """Weight bytes read in one step: of the routed experts only experts with a token. The embedding is a lookup."""
        shape = self.shape
        looked_up = 0 if shape.tied else shape.vocabulary_parameters
        whole = self.weight_bytes - 2 * looked_up / self.tp
        if shape.experts is None:
            return whole
        experts = shape.sparse_layers * shape.expert_parameters * WEIGHT_BYTES[self.weights] / self.tp
        untouched: float = (1 - shape.experts.chosen / shape.experts.count) ** requests
        return whole - experts * untouched

    def _rate(self) -> float:
        """Operations per second; 4-bit and 8-bit weights are multiplied in 16 bits on devices without a faster type."""
        gpu = self.cluster.gpu
        low: float = gpu.peak("fp8") * known.LOW_SHARE["fp8"] if self.weights == "fp8" else gpu.peak("bf16")
        return low * gpu.sustained * known.PREFILL_SHARE / known.PRODUCT_SHARE

    @cached_property
    def prompt_seconds(self) -> float:
        length = self.load.prompt * (1 - self.load.shared)
        shape, gpu = self.shape, self.cluster.gpu
        flops = 2 * shape.active_parameters * length
        attention = shape.attention_flops(self.load.prompt) * length
        half = gpu.peak("bf16") * gpu.sustained * known.ATTENTION_SHARE
        computed = (flops / self._rate() + attention / half) / self.tp
        sent = 4 * 2 * shape.hidden * length * (self.tp - 1) / self.tp * shape.layers
        reduced = sent / (self.cluster.link(self.tp) * known.LINK_SHARE) if self.tp > 1 else 0.0
        return max(computed + reduced, self.step_seconds(1))

    def rate(self, requests: float) -> float:
        """Requests per second with `requests` concurrent requests."""
        return requests / (self.load.answer * self.step_seconds(requests) + requests * self.prompt_seconds)

    def between_seconds(self, requests: float) -> float:
        """Seconds between two tokens of one request: a step, and the prompts of other requests computed in between."""
        return self.step_seconds(requests) + requests * self.prompt_seconds / self.load.answer

    def requests_for(self, rate: float) -> int | None:
        """The smallest number of concurrent requests with that rate, or None if no fitting number reaches it."""
        low, high = 1, self.most_requests
        if high < 1 or self.rate(high) < rate:
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.rate(middle) >= rate else (middle + 1, high)
        return low

    @property
    def fits(self) -> bool:
        return self.most_requests >= 1


@dataclass(frozen=True)
class Serving:
    """Replicas for a load, each with `requests` concurrent requests."""

    replica: Replica
    replicas: int
    requests: int

    @property
    def gpus(self) -> int:
        return self.replicas * self.replica.tp

    @property
    def rate(self) -> float:
        """Maximum rate of all replicas."""
        return self.replicas * max(self.replica.rate(n) for n in _counts(self.replica.most_requests))

    @property
    def first(self) -> float:
        """Seconds to the first token: the prompt, and the queue at the replicas' utilization."""
        busy = min(0.95, self.replica.load.rate / self.rate)
        own = self.replica.prompt_seconds + self.replica.step_seconds(self.requests)
        return own + self.replica.prompt_seconds * busy / (2 * (1 - busy))

    @property
    def between(self) -> float:
        return self.replica.between_seconds(self.requests)

    @property
    def step_tokens(self) -> int:
        """Token budget of one step, including prompt chunks. With a target between two tokens, prompt chunks are
        limited accordingly.
        """
        replica, load = self.replica, self.replica.load
        if load.between is None:
            return STEP_TOKENS
        slack = max(0.0, load.between - replica.step_seconds(self.requests))
        fresh = load.prompt * (1 - load.shared)
        pieces = int(slack / replica.prompt_seconds * fresh) // STEP_PIECE
        return self.requests + STEP_PIECE * min(max(1, pieces), MOST_STEP_TOKENS // STEP_PIECE)

    @property
    def tokens(self) -> float:
        """Answer tokens per second of all replicas at the load."""
        return self.replica.load.rate * self.replica.load.answer

    def meets(self, load: Load) -> bool:
        return (load.first is None or self.first <= load.first) and (
            load.between is None or self.between <= load.between
        )


def _counts(most: int) -> list[int]:
    return sorted({most, *(1 << n for n in range(max(1, most).bit_length()) if 1 << n <= most)})


@dataclass(frozen=True)
class ServingChoice:
    """The choice, the best alternative for each other type of weights and cache, and the `reasons` in plain words."""

    best: Serving | None
    others: list[Serving]
    reasons: list[str]


def plan_serving(
    shape: ModelShape,
    cluster: Cluster,
    load: Load,
    *,
    tp: int | None = None,
    weights: str | None = None,
    cache: str | None = None,
) -> ServingChoice:
    """The plan with the highest precision that the cluster allows: 16 bits if they are sufficient for the load, else
    8, else 4; then the fewest GPUs.
    """
    if not shape.gated:
        raise ConfigError(
            f"{shape.name} has feed-forward layers of two matrices; `rondo serve` supports gated ones with three.",
            param="model",
        )
    if weights is not None and weights not in DIVIDED and (tp or 1) > 1:
        raise ConfigError(
            f"weights: {weights} weights run on one rank, but tp is {tp}. Set --tp 1, or --weights bf16.",
            param="weights",
        )
    if shape.context is not None and load.length > shape.context:
        raise ConfigError(
            f"prompt and answer have {load.length} tokens, more than the context of {shape.name} ({shape.context}).",
            param="prompt",
        )
    if weights == "int4" and group_size(shape) is None:
        raise ConfigError(
            f"weights: {shape.name} has widths that are not divisible by the group size {GROUPS[-1]}: no int4 "
            "weights. Use fp8 or int8.",
            param="weights",
        )
    tried = list(replicas(shape, cluster, load, tp, weights, cache))
    if not tried:
        raise ConfigError(
            f"tp: {tp} does not divide the heads of {shape.name}, or exceeds the {cluster.node} GPUs of a node.",
            param="tp",
        )
    carried = [serving for replica in tried if (serving := _carry(replica)) is not None]
    good = [serving for serving in carried if serving.meets(load) and serving.gpus <= cluster.gpus]
    ordered = sorted(good, key=_preference)
    by_weights: dict[tuple[str, str], Serving] = {}
    for serving in sorted(carried, key=lambda s: (s.gpus, _preference(s))):
        by_weights.setdefault((serving.replica.weights, serving.replica.cache), serving)
    best = ordered[0] if ordered else None
    others = [serving for serving in by_weights.values() if serving != best]
    return ServingChoice(best, others, _reasons(best, tried, carried, cluster, load))


def group_size(shape: ModelShape) -> int | None:
    """Columns that share a scale in 4 bits: the largest usual size that divides every quantized matrix, or None."""
    columns = [shape.hidden, shape.value_width]
    if shape.sparse_layers < shape.layers:
        columns.append(shape.intermediate)
    if shape.experts is not None:
        columns += [shape.experts.intermediate, shape.experts.shared]
    if shape.latent is not None:
        columns += [shape.latent.kv_rank, shape.latent.q_rank or 0]
    whole = math.gcd(*columns)
    return next((group for group in GROUPS if whole % group == 0), None)


def _preference(serving: Serving) -> tuple[int, int, int, int]:
    replica = serving.replica
    return EXACT_FIRST.index(replica.weights), CACHE_BYTES[replica.cache] == 1, serving.gpus, replica.tp


def replicas(
    shape: ModelShape, cluster: Cluster, load: Load, tp: int | None, weights: str | None, cache: str | None
) -> Iterator[Replica]:
    """Every kind of replica that `rondo serve` supports and the cluster has GPUs for."""
    degrees = [tp] if tp else [1 << n for n in range(cluster.node.bit_length()) if 1 << n <= cluster.node]
    types = (
        [weights]
        if weights
        else [kind for kind in EXACT_FIRST if kind != "fp8" or "fp8" in cluster.gpu.peaks]
    )
    if group_size(shape) is None:
        types = [kind for kind in types if kind != "int4"]
    for each, kind, kept in product(degrees, types, [cache] if cache else list(CACHE_BYTES)):
        if each > 1 and kind not in DIVIDED:
            continue
        if each > cluster.gpus or shape.heads % each or (shape.kv_heads % each and each % shape.kv_heads):
            continue
        yield Replica(shape, cluster, load, each, kind, kept)


def _carry(replica: Replica) -> Serving | None:
    """The smallest number of replicas that serves the load at the planned utilization, or more if a latency target
    requires fewer concurrent requests.
    """
    if not replica.fits:
        return None
    load = replica.load
    most = max(replica.rate(n) for n in _counts(replica.most_requests))
    fewest = max(1, math.ceil(load.rate / (most * known.BUSY)))
    for count in range(fewest, 4 * fewest + 1):
        requests = replica.requests_for(load.rate / count)
        if requests is None:
            continue
        serving = Serving(replica, count, requests)
        if serving.meets(load):
            return serving
    requests = replica.requests_for(load.rate / fewest)
    return None if requests is None else Serving(replica, fewest, requests)


def _reasons(
    best: Serving | None, tried: list[Replica], carried: list[Serving], cluster: Cluster, load: Load
) -> list[str]:
    if best is None:
        return _why_not(tried, carried, cluster, load)
    replica, words = best.replica, []
    exact = [r for r in tried if r.weights == "bf16"]
    if replica.weights != "bf16" and exact:
        held = max((r.most_requests for r in exact), default=0)
        words.append(
            f"{replica.weights} weights: bf16 weights "
            + ("do not fit" if held == 0 else "need more GPUs than the cluster has")
        )
    if replica.tp > 1:
        smaller = Replica(replica.shape, cluster, load, replica.tp // 2, replica.weights, replica.cache)
        if not smaller.fits:
            words.append(
                f"TP {replica.tp}: with TP {smaller.tp} the weights leave no memory for the KV cache"
            )
        else:
            words.append(
                f"TP {replica.tp}: with TP {smaller.tp} the load needs more GPUs or misses a latency target "
                f"({1e3 * smaller.between_seconds(best.requests):.0f} ms TPOT instead of "
                f"{1e3 * best.between:.0f})"
            )
    if replica.cache == "fp8":
        wide = Replica(replica.shape, cluster, load, replica.tp, replica.weights, "bf16")
        words.append(
            f"fp8 KV cache: {replica.most_requests} requests of {load.length} tokens fit, "
            f"with bf16 {wide.most_requests}"
        )
    capacity = f"capacity {best.rate:.3g} requests/s, {load.rate / best.rate:.0%} utilized at {load.rate:g}"
    words.append(f"{best.replicas} replicas: {capacity}" if best.replicas > 1 else f"1 replica: {capacity}")
    prompts = best.requests * replica.prompt_seconds
    share = prompts / (prompts + load.answer * replica.step_seconds(best.requests))
    if load.prompt * (1 - load.shared) >= 512 and load.shared == 0:
        words.append(
            "prefix cache: shared prefixes of prompts are computed once; set --shared to their share"
        )
    words.append(f"replica time: prefill {share:.0%}, decode {1 - share:.0%}")
    return words


def _why_not(tried: list[Replica], carried: list[Serving], cluster: Cluster, load: Load) -> list[str]:
    if not any(replica.fits for replica in tried):
        least = min(tried, key=lambda r: r.weight_bytes)
        need = (least.weight_bytes + known.SERVING_FIXED_BYTES) / known.CACHE_SHARE
        where = f"over {least.tp} GPUs" if least.tp > 1 else "on one GPU"
        words = [
            f"The weights do not fit: {where} in {least.weights} a GPU needs {need / GIB:.0f} GiB and "
            f"has {cluster.gpu.memory / GIB:.0f}"
        ]
        if any(replica.weights not in DIVIDED for replica in tried):
            words.append("Quantized weights run on one GPU; tensor parallelism needs bf16")
        return words
    enough = [serving for serving in carried if serving.meets(load)]
    if not enough:
        return ["No plan meets the latency targets at this load: raise --ttft or --tpot, or use faster GPUs"]
    least_gpus = min(serving.gpus for serving in enough)
    return [f"The load needs at least {least_gpus} GPUs; the cluster has {cluster.gpus}"]
