"""Metrics of `vllm bench serve`, by its definitions, from the measurements of each request.

- TTFT: from sending a request to its first token. TPOT: from the first token to the last, over the tokens less one, for
  answers of at least two. ITL: each gap between two events of a stream. E2EL: from sending to the last token.
- Throughputs are of requests that succeeded, over the time from the first request's sending to the last one's end.
- Peak output tokens a second: events within one second, seconds counted from the first request on. Peak concurrent
  requests: requests active at any time within one such second.
- Goodput: requests a second within every limit; TPOT counts as 0 for an answer of one token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rondo.client.bench.load import RequestOutcome

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
LIMITED = ("ttft", "tpot", "e2el")
"""Metrics of a whole request that a goodput limit can use."""


@dataclass(frozen=True)
class Spread:
    """Distribution of one metric, in milliseconds."""

    mean: float
    median: float
    std: float
    percentiles: dict[float, float]


@dataclass(frozen=True)
class Figures:
    duration: float
    completed: int
    failed: int
    total_input: int
    total_output: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    spreads: dict[str, Spread]


def figures(
    outcomes: Sequence[RequestOutcome],
    duration: float,
    percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
) -> Figures:
    """`goodput` has limits in milliseconds."""
    good = [outcome for outcome in outcomes if outcome.ok]
    tokens_in = sum(outcome.prompt_tokens for outcome in good)
    tokens_out = sum(outcome.output_tokens for outcome in good)
    values = {
        "ttft": [outcome.first for outcome in good],
        "tpot": [tpot(outcome) for outcome in good if outcome.output_tokens > 1],
        "itl": [gap for outcome in good for gap in outcome.gaps],
        "e2el": [outcome.latency for outcome in good],
    }
    peak_tokens, peak_requests = _peaks(good)
    kept = None if not goodput else sum(_keeps(outcome, goodput) for outcome in good) / duration
    return Figures(
        duration=duration,
        completed=len(good),
        failed=len(outcomes) - len(good),
        total_input=tokens_in,
        total_output=tokens_out,
        request_throughput=len(good) / duration,
        request_goodput=kept,
        output_throughput=tokens_out / duration,
        total_token_throughput=(tokens_in + tokens_out) / duration,
        max_output_tokens_per_s=float(peak_tokens),
        max_concurrent_requests=peak_requests,
        spreads={name: spread(each, percentiles) for name, each in values.items()},
    )


def tpot(outcome: RequestOutcome) -> float:
    later = outcome.output_tokens - 1
    return (outcome.latency - outcome.first) / later if later > 0 else 0.0


def spread(values: Sequence[float], percentiles: Sequence[float]) -> Spread:
    if not values:
        return Spread(0.0, 0.0, 0.0, dict.fromkeys(percentiles, 0.0))
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    ordered = sorted(values)
    found = {at: percentile(ordered, at) * 1000 for at in percentiles}
    return Spread(mean * 1000, percentile(ordered, 50) * 1000, std * 1000, found)


def percentile(ordered: Sequence[float], at: float) -> float:
    """Between two neighbours in proportion, as NumPy does."""
    place = (len(ordered) - 1) * at / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _keeps(outcome: RequestOutcome, limits: Mapping[str, float]) -> bool:
    seconds = {"ttft": outcome.first, "tpot": tpot(outcome), "e2el": outcome.latency}
    return all(seconds[name] * 1000 <= limit for name, limit in limits.items())


def _peaks(good: Sequence[RequestOutcome]) -> tuple[int, int]:
    """Most events and most requests within one second."""
    if not good:
        return 0, 0
    began = min(outcome.started for outcome in good)
    tokens: Counter[int] = Counter()
    requests: Counter[int] = Counter()
    for outcome in good:
        at = outcome.started - began
        requests.update(range(int(at), int(at + outcome.latency) + 1))
        at += outcome.first
        tokens[int(at)] += 1
        for gap in outcome.gaps:
            at += gap
            tokens[int(at)] += 1
    return max(tokens.values()), max(requests.values())
