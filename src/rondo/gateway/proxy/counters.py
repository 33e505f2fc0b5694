"""Counters of model requests for Prometheus, cached by their labels: finding one costs more than counting."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import Counter

from rondo.base.telemetry import metrics

REQUESTS = metrics.counter(
    "gateway_requests", "Requests to models, by engine and status of the response", ("engine", "status")
)
RETRIES = metrics.counter(
    "gateway_retries", "Requests that another engine received after a failure", ("engine",)
)
TOKENS = metrics.counter("gateway_tokens", "Tokens of requests, by model and kind", ("model", "kind"))


@lru_cache(1024)
def requests_of(engine: str, status: int) -> Counter:
    return REQUESTS.labels(engine, str(status))


@lru_cache(1024)
def tokens_of(model: str, kind: str) -> Counter:
    return TOKENS.labels(model, kind)
