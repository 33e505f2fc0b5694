"""What is counted of requests that vLLM computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from rondo.engine.exposition import Families
from rondo.engine.metrics import RequestMetrics

if TYPE_CHECKING:
    from rondo.engine.vllm.engine import VllmEngine


class VllmMetrics(RequestMetrics):
    """vLLM's own, of its cache and its scheduler, are not among them."""

    unknown = frozenset(
        {
            *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds"),
            *("iteration_tokens_total", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
            *("prompt_tokens_cached", "prompt_tokens_by_source"),
            "sleep_mode_operation_duration_seconds",
        }
    )

    def __init__(self, engine: VllmEngine, model_name: str) -> None:
        super().__init__(engine.max_model_len, model_name)
        self._engine = engine

    def state(self, families: Families) -> Iterator[Metric]:
        running, waiting = self._engine.load()
        yield families.gauge("num_requests_running", "Samples under way.", running)
        yield families.gauge("num_requests_waiting", "Samples that are more than fit together.", waiting)
        yield families.gauge("weight_version", "Version of the weights in use.", self._engine.weight_version)
