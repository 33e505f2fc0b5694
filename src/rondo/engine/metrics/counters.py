"""Counters and histograms on the step's path, as plain numbers.

Names follow vLLM's dashboards wherever the metric is the same. `exposition.py` adds metrics read from the engine's
state at scrape time, and converts all of them to Prometheus form.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rondo.base.telemetry.account import RequestStats, SampleStats
from rondo.client.types import GenerateRequest
from rondo.engine.core import EngineCore
from rondo.engine.metrics.exposition import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    LATENCY,
    OPERATIONS,
    PREEMPTIONS,
    PREFIX,
    SAMPLES,
    STEP_TOKENS,
    Distribution,
    Families,
    one_two_five,
    state_of,
)
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.step import StepOutput

SLEEPING = ("sleep", "wake_up")
UPDATING = ("start_weight_update", "update_weights", "finish_weight_update")


class RequestMetrics(Collector):
    """Metrics of requests, for any engine. Register it with a Prometheus registry."""

    unknown: frozenset[str] = frozenset()
    """Names of metrics that the engine does not provide."""

    def __init__(self, max_model_len: int, model_name: str = "") -> None:
        self.model_name = model_name
        lengths = one_two_five(max_model_len)
        self.first_token = Distribution(FIRST_TOKEN)
        self.between_tokens = Distribution(BETWEEN_TOKENS)
        self.mean_between_tokens = Distribution(BETWEEN_TOKENS)
        self.latency = Distribution(LATENCY)
        self.queue_time = Distribution(LATENCY)
        self.inference_time = Distribution(LATENCY)
        self.prefill_time = Distribution(LATENCY)
        self.decode_time = Distribution(LATENCY)
        self.step_tokens = Distribution(STEP_TOKENS)
        self.request_prompt = Distribution(lengths)
        self.request_computed = Distribution(lengths)
        self.request_generated = Distribution(lengths)
        self.request_most_generated = Distribution(lengths)
        self.request_max_tokens = Distribution(lengths)
        self.request_n = Distribution(SAMPLES)
        self.request_preemptions = Distribution(PREEMPTIONS)
        self.operations = {name: Distribution(OPERATIONS) for name in (*SLEEPING, *UPDATING)}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.rejected = 0
        self._ended: dict[str, list[int]] = {}
        """For each unfinished request, the lengths of its finished samples."""

    def observe(self, step: StepOutput, now: float) -> None:
        for request in step.admitted:
            if request.preemptions == 0:
                self._observe_begin(request)
        # Requests that moved in the previous step share one gap, so that a step adds only a few dictionary
        # entries.
        gaps = Counter([request.last_at for request in step.advanced])
        for last, times in gaps.items():
            if last:
                self.between_tokens.observe(now - last, times)
        for request in step.advanced:
            if not request.last_at:
                request.first_at = now
                self.first_token.observe(now - request.added_at)
            request.last_at = now
        self.generated_tokens += len(step.advanced) + step.extra
        for request in step.finished:
            self.observe_end(request, now)

    def _observe_begin(self, request: Request) -> None:
        cached = max(request.first_cached, 0)
        self.queue_time.observe(request.started_at - request.added_at)
        self.prompt_tokens += request.prompt_length
        self.cached_tokens += cached
        self.request_computed.observe(request.prompt_length - cached)

    def observe_end(self, request: Request, now: float) -> None:
        self.finished["error" if request.error else request.finish_reason or "abort"] += 1
        self.latency.observe(now - request.added_at)
        self.request_prompt.observe(request.prompt_length)
        self.request_generated.observe(request.generated)
        self.request_preemptions.observe(request.preemptions)
        if request.index == 0:
            self.request_n.observe(request.sampling.n)
            if request.sampling.max_tokens is not None:
                self.request_max_tokens.observe(request.sampling.max_tokens)
        ended = self._ended.setdefault(request.id, [])
        ended.append(request.generated)
        if len(ended) == request.sampling.n:
            self.request_most_generated.observe(max(self._ended.pop(request.id)))
        if request.first_at:
            self._observe_phases(request)

    def _observe_phases(self, request: Request) -> None:
        """Preemptions count towards the phase in which they occurred."""
        self.prefill_time.observe(request.first_at - request.started_at)
        self.decode_time.observe(request.last_at - request.first_at)
        self.inference_time.observe(request.last_at - request.started_at)
        later = request.generated - 1
        # As in vLLM, an answer of one token counts as 0.
        self.mean_between_tokens.observe((request.last_at - request.first_at) / later if later else 0.0)

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Records the duration of an operator's call if it succeeds."""
        started = time.monotonic()
        yield
        self.operations[name].observe(time.monotonic() - started)

    def collect(self) -> Iterator[Metric]:
        families = Families(self.model_name)
        for metric in (*self.state(families), *self._of_requests(families)):
            if metric.name.removeprefix(PREFIX) not in self.unknown:
                yield metric

    def state(self, families: Families) -> Iterator[Metric]:
        """Metrics read from the engine's state at scrape time."""
        yield from ()

    def _of_requests(self, families: Families) -> Iterator[Metric]:
        yield from self._counters(families)
        for name, doc, values in self._histograms():
            yield families.histogram(name, doc, values)
        for name, doc, verbs in (
            (
                "sleep_mode_operation_duration_seconds",
                "Seconds of a sleep or wake.",
                SLEEPING,
            ),
            (
                "rl_weight_update_operation_duration_seconds",
                "Seconds of a weight-update operation.",
                UPDATING,
            ),
        ):
            yield families.histograms(name, doc, "operation", {verb: self.operations[verb] for verb in verbs})

    def _counters(self, families: Families) -> Iterator[Metric]:
        computed = self.prompt_tokens - self.cached_tokens
        by_source = {"local_compute": computed, "local_cache_hit": self.cached_tokens}
        yield families.counter("prompt_tokens", "Prompt tokens of scheduled samples.", self.prompt_tokens)
        yield families.counter(
            "prompt_tokens_cached", "Prompt tokens found in the prefix cache.", self.cached_tokens
        )
        yield families.counters(
            "prompt_tokens_by_source",
            "Prompt tokens by source.",
            "source",
            by_source,
        )
        yield families.counter("generation_tokens", "Number of generated tokens.", self.generated_tokens)
        yield families.counters(
            "request_success",
            "Finished samples by reason.",
            "finished_reason",
            self.finished,
        )
        yield families.counters(
            "admission_rejections",
            "Requests rejected because the queue was full.",
            "reason",
            {"max_num_queued_reqs": self.rejected},
        )

    def _histograms(self) -> Iterator[tuple[str, str, Distribution]]:
        yield "time_to_first_token_seconds", "Time to first token in seconds.", self.first_token
        yield "inter_token_latency_seconds", "Time between two output tokens in seconds.", self.between_tokens
        yield (
            "request_time_per_output_token_seconds",
            "Mean time per output token of a sample in seconds, without the first token.",
            self.mean_between_tokens,
        )
        yield "e2e_request_latency_seconds", "End-to-end latency of a sample in seconds.", self.latency
        yield "request_queue_time_seconds", "Time in the queue in seconds.", self.queue_time
        yield (
            "request_inference_time_seconds",
            "Seconds from first step to last token.",
            self.inference_time,
        )
        yield (
            "request_prefill_time_seconds",
            "Seconds from first step to first token.",
            self.prefill_time,
        )
        yield (
            "request_decode_time_seconds",
            "Seconds from first to last token.",
            self.decode_time,
        )
        yield "iteration_tokens_total", "Number of tokens computed per step.", self.step_tokens
        yield "request_prompt_tokens", "Number of prompt tokens per sample.", self.request_prompt
        yield (
            "request_prefill_kv_computed_tokens",
            "Prompt tokens per sample that were computed, not found in the prefix cache.",
            self.request_computed,
        )
        yield "request_generation_tokens", "Number of generated tokens per sample.", self.request_generated
        yield (
            "request_max_num_generation_tokens",
            "Number of generated tokens of a request's longest sample.",
            self.request_most_generated,
        )
        yield "request_params_max_tokens", "max_tokens of requests.", self.request_max_tokens
        yield "request_params_n", "n of requests.", self.request_n
        yield "request_num_preemptions", "Number of preemptions per sample.", self.request_preemptions


class EngineMetrics(RequestMetrics):
    """Metrics of a native engine. `serving` returns whether waiting requests could start."""

    def __init__(
        self, core: EngineCore, model_name: str = "", serving: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(core.max_model_len, model_name)
        self.core = core
        self.serving = serving
        self._moved = core.scheduler.counters.moved

    def observe(self, step: StepOutput, now: float) -> None:
        super().observe(step, now)
        moved = self.core.scheduler.counters.moved
        if moved > self._moved:
            self.step_tokens.observe(moved - self._moved)
            self._moved = moved

    def state(self, families: Families) -> Iterator[Metric]:
        return state_of(self.core, families, self.serving())


def record_request(
    account: RequestStats, request: GenerateRequest, samples: Sequence[Request], model: str
) -> None:
    """Records the statistics of a request whose reader is done."""
    params = request.sampling
    for sample in samples:
        account.samples.append(
            SampleStats(
                id=request.id,
                model=request.adapter or model,
                prompt_tokens=sample.prompt_length,
                cached_tokens=max(sample.first_cached, 0),
                output_tokens=len(sample.weight_versions),
                finish_reason="error" if sample.error else sample.finish_reason or _cut(sample),
                added=sample.added_at,
                started=sample.started_at,
                first=sample.first_at,
                last=sample.last_at,
                n=params.n,
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
            )
        )


def _cut(sample: Request) -> str:
    """Finish reason of a sample that its reader ended, at a stop string or by leaving, before the engine has processed
    it."""
    return "stop" if sample.stop_reason is not None else "abort"
