"""The engine's state in Prometheus form: metrics read at scrape time, without counters of their own."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from rondo.engine.core import EngineCore
from rondo.engine.speculate.speculation import SpeculationCounters

# Buckets of vLLM's dashboards.
LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN_TOKENS = (
    *(0.001, 0.0025, 0.005),  # finer than vLLM's: a small model on one machine is that fast
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SAMPLES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
OPERATIONS = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)


def one_two_five(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    bounds, scale = [], 1
    while scale <= most:
        bounds += [scale * digit for digit in (1, 2, 5) if scale * digit <= most]
        scale *= 10
    return tuple(bounds)


class Distribution:
    """A histogram cheap enough for the step's path."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        cumulative, rows = 0, []
        for bound, count in zip([*map(str, map(float, self.bounds)), "+Inf"], self.counts, strict=True):
            cumulative += count
            rows.append((bound, float(cumulative)))
        return rows


PREFIX = "rondo:"
ENGINE = "0"
"""Value of the `engine` label: vLLM numbers its data-parallel engines, and dashboards group by it."""


class Families:
    """Metrics of one model: each has vLLM's labels `model_name` and `engine`, and at most one more."""

    def __init__(self, model_name: str) -> None:
        self._of_model = [model_name, ENGINE]

    def gauge(self, name: str, doc: str, value: float) -> Metric:
        return self._add(GaugeMetricFamily(PREFIX + name, doc, labels=self._labels()), value)

    def gauges(self, name: str, doc: str, label: str, values: Mapping[str, float]) -> Metric:
        return self._add_each(GaugeMetricFamily(PREFIX + name, doc, labels=self._labels(label)), values)

    def info(self, name: str, doc: str, facts: Mapping[str, object], value: float = 1) -> Metric:
        """An info metric: facts as labels."""
        family = GaugeMetricFamily(PREFIX + name, doc, labels=self._labels(*facts))
        family.add_metric([*self._of_model, *map(str, facts.values())], value)
        return family

    def counter(self, name: str, doc: str, value: float) -> Metric:
        return self._add(CounterMetricFamily(PREFIX + name, doc, labels=self._labels()), value)

    def counters(self, name: str, doc: str, label: str, values: Mapping[str, float]) -> Metric:
        return self._add_each(CounterMetricFamily(PREFIX + name, doc, labels=self._labels(label)), values)

    def histogram(self, name: str, doc: str, values: Distribution) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, doc, labels=self._labels())
        family.add_metric(self._of_model, buckets=values.buckets(), sum_value=values.total)
        return family

    def histograms(self, name: str, doc: str, label: str, values: Mapping[str, Distribution]) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, doc, labels=self._labels(label))
        for key, each in values.items():
            family.add_metric([*self._of_model, key], buckets=each.buckets(), sum_value=each.total)
        return family

    def _labels(self, *more: str) -> list[str]:
        return ["model_name", "engine", *more]

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, value: float) -> Metric:
        family.add_metric(self._of_model, value)
        return family

    def _add_each(
        self, family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
    ) -> Metric:
        for key, value in values.items():
            family.add_metric([*self._of_model, key], value)
        return family


def state_of(core: EngineCore, families: Families, serving: bool) -> Iterator[Metric]:
    scheduler, pool, counters = core.scheduler, core.pool, core.scheduler.counters
    waiting = scheduler.num_waiting
    yield families.gauge(
        "num_requests_running", "Number of samples in the running batch.", scheduler.num_running
    )
    yield families.gauge("num_requests_waiting", "Number of samples waiting in the queue.", waiting)
    yield families.gauges(
        "num_requests_waiting_by_reason",
        "Number of waiting samples by reason: capacity, or deferred while the engine is held, paused or asleep.",
        "reason",
        {"capacity": waiting if serving else 0, "deferred": 0 if serving else waiting},
    )
    yield families.gauge("kv_cache_usage_perc", "KV-cache usage; 1 means 100 percent.", pool.usage)
    yield _cache_config(core, families)
    yield _sleep_state(core, families)
    yield families.gauge("weight_version", "Version of the weights in use.", core.weight_version)
    yield families.counter(
        "prefix_cache_queries", "Prefix-cache queries, in tokens.", counters.prefix_queries
    )
    yield families.counter("prefix_cache_hits", "Prefix-cache hits, in tokens.", counters.prefix_hits)
    yield families.counter("num_preemptions", "Number of preemptions of samples.", counters.preemptions)
    yield from _swaps(core, families)
    if core.speculation is not None:
        yield from _speculation(core.speculation.counters, families)
    yield from _adapters(core, families)


def _cache_config(core: EngineCore, families: Families) -> Metric:
    config, pool = core.config, core.pool
    facts = {
        "block_size": pool.block_size,
        "num_gpu_blocks": pool.groups[0].num_blocks,
        "cache_dtype": config.kv_dtype,
        "enable_prefix_caching": config.prefix_cache,
        "swap_space_bytes": config.swap_bytes,
    }
    return families.info("cache_config_info", "Configuration of the KV cache.", facts)


def _sleep_state(core: EngineCore, families: Families) -> Metric:
    states = ("awake", "weights_offloaded", "discard_all")
    return families.gauges(
        "engine_sleep_state",
        "Sleep state; 1 for the current one: awake, weights offloaded to CPU memory, or weights discarded.",
        "sleep_state",
        {state: depth == core.sleeper.level for depth, state in enumerate(states)},
    )


def _speculation(counters: SpeculationCounters, families: Families) -> Iterator[Metric]:
    yield families.counter("spec_decode_num_drafts", "Number of speculative drafts.", counters.drafts)
    yield families.counter("spec_decode_num_draft_tokens", "Number of draft tokens.", counters.proposed)
    yield families.counter(
        "spec_decode_num_accepted_tokens", "Number of accepted draft tokens.", counters.accepted
    )
    yield families.counters(
        "spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by position in the draft.",
        "position",
        {str(place): count for place, count in enumerate(counters.accepted_at)},
    )


def _adapters(core: EngineCore, families: Families) -> Iterator[Metric]:
    adapters = core.adapters
    # One pair at a time: a sample that ends meanwhile releases its adapter.
    used = [(sample.adapter, sample.state) for sample in core.samples]
    yield families.gauge("adapters_loaded", "Number of loaded adapters.", adapters.num_loaded)
    yield families.gauge("adapter_bytes", "Bytes of the loaded adapters' weights.", adapters.nbytes)
    yield families.counter("adapter_loads", "Number of adapter loads.", adapters.totals.loads)
    yield families.counter("adapter_evictions", "Number of adapter evictions.", adapters.totals.evictions)

    def names(state: str) -> str:
        return ",".join(sorted({adapter.name for adapter, at in used if adapter and at == state}))

    yield families.info(
        "lora_requests_info",
        "Adapters of running and waiting requests; the value is the Unix time of the report.",
        {
            "max_lora": core.config.max_loaded_adapters,
            "waiting_lora_adapters": names("waiting"),
            "running_lora_adapters": names("running"),
        },
        time.time(),
    )


def _swaps(core: EngineCore, families: Families) -> Iterator[Metric]:
    counters, swap = core.scheduler.counters, core.scheduler.swap
    by_swap, used = counters.swaps, 0.0 if swap is None else swap.usage
    recomputed = counters.preemptions - by_swap
    out, back, waiting = (0, 0, 0) if swap is None else (swap.blocks_out, swap.blocks_in, swap.num_requests)
    yield families.gauge("num_requests_swapped", "Number of samples swapped out to host memory.", waiting)
    yield families.gauge("cpu_cache_usage_perc", "Usage of the host KV cache; 1 means 100 percent.", used)
    yield families.counter(
        "num_preemptions_by_swap", "Preemptions whose KV blocks were swapped out to host memory.", by_swap
    )
    yield families.counter(
        "num_preemptions_by_recompute", "Preemptions whose KV blocks are recomputed.", recomputed
    )
    yield families.counter("num_blocks_swapped_out", "KV blocks swapped out to host memory.", out)
    yield families.counter("num_blocks_swapped_in", "KV blocks swapped in from host memory.", back)
