"""Output rate and prefix-cache hit rate of an engine, from the counters of its Prometheus metrics."""

from __future__ import annotations

import re
from collections import deque

COUNTER = re.compile(
    rb"^(\w+):(generation_tokens|prompt_tokens|prompt_tokens_cached|prefix_cache_hits|prefix_cache_queries)_total"
    rb"(?:\{[^\n]*\})? ([0-9.eE+]+)",
    re.MULTILINE,
)
"""Of vLLM and of Rondo's server."""
RATE_SECONDS = 10.0
HIT_SECONDS = 60.0
Sample = tuple[float, dict[str, float]]


class EngineRates:
    """Counters of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def note(self, metrics: bytes, now: float) -> None:
        """Counters at a time; those of several models are added. A second prefix repeats them."""
        sums: dict[str, float] = {}
        found = COUNTER.findall(metrics)
        for prefix, name, value in found:
            if prefix == found[0][0]:
                key = name.decode()
                sums[key] = sums.get(key, 0.0) + float(value)
        if self._samples and any(value < self._samples[-1][1].get(name, 0.0) for name, value in sums.items()):
            self._samples.clear()  # the engine was restarted
        self._samples.append((now, sums))
        while self._samples[0][0] < now - HIT_SECONDS:
            self._samples.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens of the last seconds; None before two readings, and of an engine without the counter."""
        if not self._samples or "generation_tokens" not in self._samples[-1][1]:
            return None
        last, after = self._samples[-1]
        first, before = next(each for each in self._samples if each[0] >= last - RATE_SECONDS)
        if first == last:
            return None
        return (after["generation_tokens"] - before.get("generation_tokens", 0.0)) / (last - first)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the prompt tokens of the last minute found in the prefix cache; None without prompts."""
        for hits, asked in (
            ("prompt_tokens_cached", "prompt_tokens"),
            ("prefix_cache_hits", "prefix_cache_queries"),
        ):
            if self._samples and {hits, asked} <= self._samples[-1][1].keys():
                before, after = self._samples[0][1], self._samples[-1][1]
                total = after[asked] - before.get(asked, 0.0)
                return (after[hits] - before.get(hits, 0.0)) / total if total > 0 else None
        return None
