"""The engine's state in Prometheus form: metrics read at scrape time, without counters of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from rondo.engine.core import EngineCore
from rondo.engine.metrics.distribution import Distribution
from rondo.engine.speculate.speculation import SpeculationCounters

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
    yield families.gauge("num_requests_running", "Samples being computed.", scheduler.num_running)
    yield families.gauge("num_requests_waiting", "Samples in the queue.", waiting)
    yield families.gauges(
        "num_requests_waiting_by_reason",
        "Samples in the queue: for want of room, or while the engine is held, paused or asleep.",
        "reason",
        {"capacity": waiting if serving else 0, "deferred": 0 if serving else waiting},
    )
    yield families.gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", pool.usage)
    yield _cache_config(core, families)
    yield _sleep_state(core, families)
    yield families.gauge("weight_version", "Version of the weights in use.", core.weight_version)
    yield families.counter("prefix_cache_queries", "Tokens looked up in the cache.", counters.prefix_queries)
    yield families.counter("prefix_cache_hits", "Tokens found in the prefix cache.", counters.prefix_hits)
    yield families.counter("num_preemptions", "Samples that gave their blocks back.", counters.preemptions)
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
    return families.info("cache_config_info", "How the KV cache is set up.", facts)


def _sleep_state(core: EngineCore, families: Families) -> Metric:
    states = ("awake", "weights_offloaded", "discard_all")
    return families.gauges(
        "engine_sleep_state",
        "1 for the state the engine is in: awake, or asleep with its weights in CPU memory, or without any.",
        "sleep_state",
        {state: depth == core.sleeper.level for depth, state in enumerate(states)},
    )


def _speculation(counters: SpeculationCounters, families: Families) -> Iterator[Metric]:
    yield families.counter("spec_decode_num_drafts", "Times that tokens were proposed.", counters.drafts)
    yield families.counter("spec_decode_num_draft_tokens", "Tokens proposed.", counters.proposed)
    yield families.counter("spec_decode_num_accepted_tokens", "Proposed tokens accepted.", counters.accepted)
    yield families.counters(
        "spec_decode_num_accepted_tokens_per_pos",
        "Proposed tokens accepted, by their place in the proposal.",
        "position",
        {str(place): count for place, count in enumerate(counters.accepted_at)},
    )


def _adapters(core: EngineCore, families: Families) -> Iterator[Metric]:
    adapters = core.adapters
    # One pair at a time: a sample that ends meanwhile releases its adapter.
    used = [(sample.adapter, sample.state) for sample in core.samples]
    yield families.gauge("adapters_loaded", "Adapters whose weights are loaded.", adapters.num_loaded)
    yield families.gauge("adapter_bytes", "Memory of the loaded adapters' weights.", adapters.nbytes)
    yield families.counter("adapter_loads", "Adapters loaded.", adapters.totals.loads)
    yield families.counter("adapter_evictions", "Adapters that made room.", adapters.totals.evictions)

    def names(state: str) -> str:
        return ",".join(sorted({adapter.name for adapter, at in used if adapter and at == state}))

    yield families.info(
        "lora_requests_info",
        "Whose adapters run and wait; the value is when that was.",
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
    yield families.gauge("num_requests_swapped", "Samples that wait with their blocks on the host.", waiting)
    yield families.gauge("cpu_cache_usage_perc", "Share of host KV blocks in use, 0 to 1.", used)
    yield families.counter(
        "num_preemptions_by_swap", "Preemptions that moved the blocks to the host.", by_swap
    )
    yield families.counter("num_preemptions_by_recompute", "Preemptions that gave them up.", recomputed)
    yield families.counter("num_blocks_swapped_out", "KV blocks moved to the host.", out)
    yield families.counter("num_blocks_swapped_in", "KV blocks moved back from the host.", back)
