"""Prometheus metrics under the name `rondo:`; one registry a process.

A repeated declaration returns the same metric, so a module may declare its metrics where it uses them.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

PREFIX = "rondo:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]
registry = CollectorRegistry()
ProcessCollector(registry=registry)

Metric = TypeVar("Metric", Counter, Gauge, Histogram)
_known: dict[str, tuple[object, tuple[object, ...]]] = {}
_lock = threading.Lock()


def counter(name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
    return _get(name, (Counter, tuple(labels)), lambda full: Counter(full, doc, labels, registry=registry))


def gauge(name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
    return _get(name, (Gauge, tuple(labels)), lambda full: Gauge(full, doc, labels, registry=registry))


def histogram(
    name: str, doc: str, labels: Sequence[str] = (), buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS
) -> Histogram:
    kind = (Histogram, tuple(labels), tuple(buckets))
    return _get(name, kind, lambda full: Histogram(full, doc, labels, buckets=buckets, registry=registry))


def render(alias: str | None = None) -> bytes:
    """The text that `/metrics` answers with; `alias="vllm:"` repeats each metric under that prefix."""
    own = generate_latest(registry)
    if alias is None:
        return own
    marks = (PREFIX, f"# HELP {PREFIX}", f"# TYPE {PREFIX}")
    lines = [line for line in own.decode().splitlines(keepends=True) if line.startswith(marks)]
    return own + "".join(line.replace(PREFIX, alias, 1) for line in lines).encode()


def _get(name: str, kind: tuple[object, ...], make: Callable[[str], Metric]) -> Metric:
    full = name if name.startswith(PREFIX) else PREFIX + name
    with _lock:
        if full not in _known:
            _known[full] = (make(full), kind)
        metric, first = _known[full]
    if first != kind:
        raise ValueError(f"metric {full} is declared twice, as {first} and as {kind}")
    return metric  # type: ignore[return-value]
