"""What an engine counts, in plain numbers on the step's path, and turned into Prometheus form when asked
for."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rondo.engine.core import EngineCore
from rondo.engine.request import Request
from rondo.engine.speculate.speculation import SpeculationCounters
from rondo.engine.step import Step

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
BETWEEN_TOKENS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
)


class Distribution:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        cumulative, rows = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            cumulative += count
            rows.append((bound, float(cumulative)))
        return rows


class EngineMetrics(Collector):
    """Register it with a Prometheus registry; names and buckets are those of vLLM's dashboards."""

    def __init__(self, core: EngineCore, model_name: str = "") -> None:
        self.core = core
        self.model_name = model_name
        self.first_token = Distribution(FIRST_TOKEN)
        self.between_tokens = Distribution(BETWEEN_TOKENS)
        self.latency = Distribution(LATENCY)
        self.queue_time = Distribution(LATENCY)
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self.rejected = 0

    def observe(self, step: Step, now: float) -> None:
        for request in step.admitted:
            if request.preemptions == 0:
                self.queue_time.observe(request.started_at - request.added_at)
                self.prompt_tokens += request.prompt_length
        # Requests that moved in the step before share one gap, so this is a few dictionary entries a step.
        gaps = Counter([request.last_at for request in step.advanced])
        for last, times in gaps.items():
            if last:
                self.between_tokens.observe(now - last, times)
        for request in step.advanced:
            if not request.last_at:
                self.first_token.observe(now - request.added_at)
            request.last_at = now
        self.generated_tokens += len(step.advanced) + step.extra
        for request in step.finished:
            self.observe_end(request, now)

    def observe_end(self, request: Request, now: float) -> None:
        self.finished[request.finish_reason or "abort"] += 1
        self.latency.observe(now - request.added_at)

    def collect(self) -> Iterator[Metric]:
        scheduler, pool = self.core.scheduler, self.core.pool
        counters = scheduler.counters
        yield self._gauge("num_requests_running", "Requests being computed.", scheduler.num_running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", scheduler.num_waiting)
        yield self._gauge(
            "kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", pool.used / pool.num_blocks
        )
        yield self._sleep_state()
        yield self._gauge("weight_version", "Version of the weights in use.", self.core.weight_version)
        yield self._counter("prompt_tokens", "Prompt tokens received.", self.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", self.generated_tokens)
        yield self._counter("prefix_cache_queries", "Tokens looked up in the cache.", counters.prefix_queries)
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", counters.prefix_hits)
        yield self._counter("num_preemptions", "Requests that gave their blocks back.", counters.preemptions)
        yield from self._swaps()
        yield self._counter("admission_rejections", "Requests refused for a full queue.", self.rejected)
        if self.core.speculation is not None:
            yield from self._speculation(self.core.speculation.counters)
        yield from self._of_adapters()
        finished = CounterMetricFamily(
            "rondo:request_success", "Finished requests.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self.finished.items():
            finished.add_metric([self.model_name, reason], count)
        yield finished
        yield self._histogram("time_to_first_token_seconds", "Arrival to first token.", self.first_token)
        yield self._histogram("inter_token_latency_seconds", "Time between tokens.", self.between_tokens)
        yield self._histogram("e2e_request_latency_seconds", "Arrival to last token.", self.latency)
        yield self._histogram("request_queue_time_seconds", "Arrival to first step.", self.queue_time)

    def _sleep_state(self) -> Metric:
        family = GaugeMetricFamily(
            "rondo:engine_sleep_state",
            "1 for the state the engine is in: awake, or asleep with its weights in CPU memory, or without any.",
            labels=["model_name", "sleep_state"],
        )
        level = self.core.sleeper.level
        for depth, state in enumerate(("awake", "weights_offloaded", "discard_all")):
            family.add_metric([self.model_name, state], depth == level)
        return family

    def _speculation(self, counters: SpeculationCounters) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", "Times that tokens were proposed.", counters.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Tokens proposed.", counters.proposed)
        yield self._counter("spec_decode_num_accepted_tokens", "Proposed tokens accepted.", counters.accepted)
        places = CounterMetricFamily(
            "rondo:spec_decode_num_accepted_tokens_per_pos",
            "Proposed tokens accepted, by their place in the proposal.",
            labels=["model_name", "position"],
        )
        for place, count in enumerate(counters.accepted_at):
            places.add_metric([self.model_name, str(place)], count)
        yield places

    def _of_adapters(self) -> Iterator[Metric]:
        adapters = self.core.adapters
        yield self._gauge("adapters_loaded", "Adapters whose weights are loaded.", adapters.num_loaded)
        yield self._gauge("adapter_bytes", "Memory of the loaded adapters' weights.", adapters.nbytes)
        yield self._counter("adapter_loads", "Adapters loaded.", adapters.totals.loads)
        yield self._counter("adapter_evictions", "Adapters that made room.", adapters.totals.evictions)

    def _swaps(self) -> Iterator[Metric]:
        counters, swap = self.core.scheduler.counters, self.core.scheduler.swap
        by_swap, used = counters.swaps, 0.0 if swap is None else swap.host.used / swap.host.num_blocks
        recomputed = counters.preemptions - by_swap
        out, back, waiting = (
            (0, 0, 0) if swap is None else (swap.blocks_out, swap.blocks_in, swap.num_requests)
        )
        yield self._gauge(
            "num_requests_swapped", "Requests that wait with their blocks on the host.", waiting
        )
        yield self._gauge("cpu_cache_usage_perc", "Share of host KV blocks in use, 0 to 1.", used)
        yield self._counter(
            "num_preemptions_by_swap", "Preemptions that moved the blocks to the host.", by_swap
        )
        yield self._counter("num_preemptions_by_recompute", "Preemptions that gave them up.", recomputed)
        yield self._counter("num_blocks_swapped_out", "KV blocks moved to the host.", out)
        yield self._counter("num_blocks_swapped_in", "KV blocks moved back from the host.", back)

    def _gauge(self, name: str, doc: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"rondo:{name}", doc, labels=["model_name"])
        family.add_metric([self.model_name], value)
        return family

    def _counter(self, name: str, doc: str, value: float) -> Metric:
        family = CounterMetricFamily(f"rondo:{name}", doc, labels=["model_name"])
        family.add_metric([self.model_name], value)
        return family

    def _histogram(self, name: str, doc: str, values: Distribution) -> Metric:
        family = HistogramMetricFamily(f"rondo:{name}", doc, labels=["model_name"])
        family.add_metric([self.model_name], buckets=values.buckets(), sum_value=values.total)
        return family
