"""Predicted time of a push: the same plan that moves the bytes, over links with a bandwidth and a latency.

The first copies of an engine are sent by the learner. An engine rank that has a bucket passes it on to the rank with
the same regions in the next copy, so that a bucket travels along a chain while the next one follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rondo.weights.plan.layouts import RankLayout, Shapes, total_bytes
from rondo.weights.plan.planner import Transfer, make_plan


@dataclass(frozen=True)
class Links:
    """Bytes per second of one rank: of its network interface (each way), of a copy in memory, and of the conversion.
    `bucket_seconds` is the fixed cost of a bucket, `latency_seconds` that of a push."""

    network: float = 50e9
    memory: float = 1000e9
    convert: float = 500e9
    bucket_seconds: float = 50e-6
    latency_seconds: float = 0.02


@dataclass(frozen=True)
class Prediction:
    """`stages` are the seconds that each stage takes by itself; the slowest one determines the time of the pipeline."""

    nbytes: int
    moved: int
    direct: int
    chain: int
    stages: dict[str, float]
    seconds: float
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes from each learner rank to each engine rank of the first copy."""


def plan_copy(shapes: Shapes, learner: RankLayout, engine: RankLayout) -> list[Transfer]:
    """Transfers from the learner to one copy of the engine."""
    return make_plan(
        engine.parts(shapes),
        learner.parts(shapes),
        lambda name: shapes[name][1],
    )


def predict(
    transfers: Sequence[Transfer],
    nbytes: int,
    learner: RankLayout,
    engine: RankLayout,
    links: Links,
    bucket_bytes: int,
) -> Prediction:
    out, received, sent = Counter[int](), Counter[int](), Counter[tuple[int, int]]()
    for each in transfers:
        out[each.owner] += each.nbytes
        received[each.receiver] += each.nbytes
        sent[each.owner, each.receiver] += each.nbytes
    most_in, most_out = max(received.values(), default=0), max(out.values(), default=0)
    # The learner sends as many first copies as it can in the time that a receiver needs for its own bytes.
    direct = max(1, min(engine.dp, most_in * learner.dp // max(most_out, 1)))
    chain = -(-engine.dp // direct)
    per_owner = -(-direct * most_out // learner.dp)
    stages = {
        "gather": per_owner / links.memory,
        "convert": most_out / links.convert,
        "transfer": max(most_in, per_owner) / links.network,
        "load": most_in / links.memory,
    }
    count = -(-most_in // bucket_bytes)
    bucket = bucket_bytes / links.network + links.bucket_seconds
    fill = sum(
        min(each, bucket_bytes / rate) for each, rate in zip(stages.values(), _rates(links), strict=True)
    )
    seconds = max(stages.values()) + count * links.bucket_seconds + fill + (chain - 1) * bucket
    return Prediction(
        nbytes,
        engine.dp * sum(received.values()),
        direct,
        chain,
        stages,
        seconds + links.latency_seconds,
        dict(sent),
    )


def simulate(
    shapes: Shapes, learner: RankLayout, engine: RankLayout, links: Links, bucket_bytes: int
) -> Prediction:
    transfers = plan_copy(shapes, learner, engine)
    return predict(transfers, total_bytes(shapes), learner, engine, links, bucket_bytes)


def _rates(links: Links) -> tuple[float, float, float, float]:
    return links.memory, links.convert, links.network, links.memory
