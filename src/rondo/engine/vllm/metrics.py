"""Metrics of requests that vLLM computes, and vLLM's own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from rondo.engine.metrics.counters import RequestMetrics
from rondo.engine.metrics.exposition import PREFIX, Families

if TYPE_CHECKING:
    from rondo.engine.vllm.engine import VllmEngine

THEIRS = "vllm:"
CREATED = "_created"
"""Suffix of the creation time that vLLM exports for each counter."""


class VllmMetrics(RequestMetrics):
    """Metrics of a vLLM engine: request metrics are counted here, as clients observe them; metrics of the cache, the
    scheduler and the steps are vLLM's."""

    unknown = frozenset(
        {
            *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds"),
            *("iteration_tokens_total", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
            *("prompt_tokens_cached", "prompt_tokens_by_source"),
            "sleep_mode_operation_duration_seconds",
        }
    )
    vllms = frozenset({"num_requests_running", "num_requests_waiting"})
    """Metrics for which vLLM's value is preferred; ours is an estimate for when vLLM cannot be reached."""

    def __init__(self, engine: VllmEngine, model_name: str) -> None:
        super().__init__(engine.max_model_len, model_name)
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        own = {metric.name: metric for metric in super().collect()}
        theirs = {metric.name: metric for metric in self._theirs()}
        guesses = {name: metric for name, metric in theirs.items() if name.removeprefix(PREFIX) in self.vllms}
        yield from (theirs | own | guesses).values()

    def state(self, families: Families) -> Iterator[Metric]:
        running, waiting = self._engine.load()
        yield families.gauge("num_requests_running", "Number of samples in the running batch.", running)
        yield families.gauge("num_requests_waiting", "Number of samples waiting in the queue.", waiting)
        yield families.gauge("weight_version", "Version of the weights in use.", self._engine.weight_version)

    def _theirs(self) -> Iterator[Metric]:
        """vLLM's metrics under Rondo's names."""
        for metric in self._engine.backend.figures():
            if not metric.name.startswith(THEIRS) or metric.name.endswith(CREATED):
                continue
            named = Metric(metric.name.replace(THEIRS, PREFIX, 1), metric.documentation, metric.type)
            for sample in metric.samples:
                if not sample.name.endswith(CREATED):
                    labels = sample.labels | {"model_name": self.model_name}
                    named.add_sample(sample.name.replace(THEIRS, PREFIX, 1), labels, sample.value)
            yield named
