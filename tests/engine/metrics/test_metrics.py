"""An engine's metrics as Prometheus reads them: names, labels, buckets and figures."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from engine.conftest import TINY
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.metrics.counters import EngineMetrics
from rondo.engine.metrics.exposition import Distribution, one_two_five
from rondo.models import new

PLAIN = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


class Ticking:
    """Each look at this clock is a second later."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def core() -> EngineCore:
    return EngineCore(new(TINY, seed=0).eval(), EngineConfig(block_size=4), clock=Ticking())


def read(metrics: EngineMetrics) -> dict[str, Metric]:
    """What a scrape finds, through the format and its own parser."""
    registry = CollectorRegistry()
    registry.register(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {family.name: family for family in families}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    """The one sample of that name with these labels, whatever other labels it has."""
    found = [
        each.value
        for family in families.values()
        for each in family.samples
        if each.name == f"rondo:{sample}" and labels.items() <= each.labels.items()
    ]
    assert len(found) == 1, (sample, labels, found)
    return found[0]


def run(core: EngineCore, metrics: EngineMetrics, *requests: GenerateRequest) -> None:
    for request in requests:
        core.add(request)
    while core.has_work:
        step = core.step()
        metrics.observe(step, core._clock())


GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason"),
    *("kv_cache_usage_perc", "engine_sleep_state", "lora_requests_info", "cache_config_info"),
)
COUNTERS = (
    *("prompt_tokens", "generation_tokens", "prompt_tokens_cached", "prompt_tokens_by_source"),
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "request_success"),
    *("admission_rejections",),
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
    *("request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
    *("request_params_n", "request_params_max_tokens", "iteration_tokens_total", "request_num_preemptions"),
    *("request_prefill_kv_computed_tokens", "rl_weight_update_operation_duration_seconds"),
    *("sleep_mode_operation_duration_seconds",),
)


def test_all_of_vllms_stems_are_there_from_the_start(core: EngineCore) -> None:
    families = read(EngineMetrics(core, "tiny"))
    kinds = {"gauge": GAUGES, "counter": COUNTERS, "histogram": HISTOGRAMS}
    for kind, names in kinds.items():
        for name in names:
            family = families[f"rondo:{name}"]
            assert (family.type, bool(family.documentation)) == (kind, True), name
            assert family.samples, name
            for sample in family.samples:
                assert (sample.labels["model_name"], sample.labels["engine"]) == ("tiny", "0")


def test_what_a_request_leaves_behind(core: EngineCore) -> None:
    metrics = EngineMetrics(core)
    request = GenerateRequest("a", list(range(3, 13)), PLAIN)
    run(core, metrics, request)
    samples = metrics.first_token
    assert (sum(samples.counts), metrics.prompt_tokens, metrics.generated_tokens) == (1, 10, 4)
    families = read(metrics)
    counted = {
        "time_to_first_token_seconds": 1,
        "inter_token_latency_seconds": 3,
        "request_time_per_output_token_seconds": 1,
        "e2e_request_latency_seconds": 1,
        "request_queue_time_seconds": 1,
        "request_inference_time_seconds": 1,
        "request_prefill_time_seconds": 1,
        "request_decode_time_seconds": 1,
        "iteration_tokens_total": 4,
        "request_params_n": 1,
    }
    assert {name: value(families, f"{name}_count") for name in counted} == counted
    sums = {
        "request_prompt_tokens": 10,
        "request_prefill_kv_computed_tokens": 10,
        "request_generation_tokens": 4,
        "request_max_num_generation_tokens": 4,
        "request_params_max_tokens": 4,
        "request_params_n": 1,
        "request_num_preemptions": 0,
        "iteration_tokens_total": 13,  # the last token is not computed
    }
    assert {name: value(families, f"{name}_sum") for name in sums} == sums
    phase = {
        name: value(families, f"request_{name}_time_seconds_sum")
        for name in ("queue", "prefill", "decode", "inference")
    }
    assert phase["inference"] == phase["prefill"] + phase["decode"]
    assert value(families, "e2e_request_latency_seconds_sum") == phase["queue"] + phase["inference"]
    assert value(families, "time_to_first_token_seconds_sum") == phase["queue"] + phase["prefill"]
    assert value(families, "inter_token_latency_seconds_sum") == phase["decode"] > 0
    assert value(families, "request_time_per_output_token_seconds_sum") == phase["decode"] / 3


def test_the_prompts_own_step_is_not_queueing() -> None:
    clock = Ticking()
    core = EngineCore(new(TINY, seed=0).eval(), EngineConfig(), clock=clock)
    compute = core.runner.execute

    def slow(step: Any) -> Any:
        clock.now += 100
        return compute(step)

    core.runner.execute = slow  # type: ignore[method-assign]
    metrics = EngineMetrics(core)
    run(core, metrics, GenerateRequest("a", [5, 6, 7], PLAIN))
    assert metrics.queue_time.total < 100 <= metrics.prefill_time.total


def test_prompt_tokens_by_where_they_came_from(core: EngineCore) -> None:
    metrics = EngineMetrics(core)
    prompt = list(range(3, 13))
    run(core, metrics, GenerateRequest("a", prompt, PLAIN))
    run(core, metrics, GenerateRequest("b", prompt, PLAIN))
    families = read(metrics)
    assert value(families, "prompt_tokens_total") == 20
    assert value(families, "prompt_tokens_cached_total") == 8
    assert value(families, "prompt_tokens_by_source_total", source="local_cache_hit") == 8
    assert value(families, "prompt_tokens_by_source_total", source="local_compute") == 12
    assert value(families, "request_prefill_kv_computed_tokens_sum") == 12


def test_samples_of_one_request(core: EngineCore) -> None:
    metrics = EngineMetrics(core)
    params = SamplingParams(max_tokens=6, seed=1, n=3, temperature=1)
    [*samples] = core.add(GenerateRequest("a", [5, 6, 7], params))
    while core.has_work:
        metrics.observe(core.step(), core._clock())
    families = read(metrics)
    assert value(families, "request_generation_tokens_count") == 3
    assert (value(families, "request_params_n_count"), value(families, "request_params_n_sum")) == (1, 3)
    assert value(families, "request_max_num_generation_tokens_count") == 1
    longest = max(sample.generated for sample in samples)
    assert value(families, "request_max_num_generation_tokens_sum") == longest


def test_the_longest_sample_counts_whoever_ends_last(core: EngineCore) -> None:
    metrics = EngineMetrics(core)
    samples = core.add(GenerateRequest("a", [5, 6, 7], SamplingParams(max_tokens=6, n=2, ignore_eos=True)))
    metrics.observe(core.step(), 1.0)
    for index in (1, 0):
        for ended in core.abort("a", index):
            metrics.observe_end(ended, 2.0)
    assert metrics.request_most_generated.total == samples[0].generated == 1
    assert sum(metrics.request_most_generated.counts) == 1


def test_who_waits_and_why(core: EngineCore) -> None:
    held = False
    metrics = EngineMetrics(core, serving=lambda: not held)
    core.add(GenerateRequest("a", [5, 6, 7], PLAIN))

    def waiting(reason: str) -> float:
        return value(read(metrics), "num_requests_waiting_by_reason", reason=reason)

    assert (waiting("capacity"), waiting("deferred")) == (1, 0)
    held = True
    assert (waiting("capacity"), waiting("deferred")) == (0, 1)


def test_errors_are_no_aborts(core: EngineCore) -> None:
    metrics = EngineMetrics(core)
    with_nan = next(core.model.parameters())
    with_nan.data.fill_(float("nan"))
    run(core, metrics, GenerateRequest("a", [5, 6, 7], PLAIN))
    families = read(metrics)
    assert value(families, "request_success_total", finished_reason="error") == 1
    assert value(families, "request_success_total", finished_reason="abort") == 0


def test_how_long_the_operators_verbs_took(tiny: Any) -> None:
    engine = AsyncEngine(EngineCore(tiny))

    async def verbs() -> None:
        await engine.sleep(1)
        await engine.wake()
        await engine.start_weight_update()
        await engine.finish_weight_update(1)

    try:
        asyncio.run(verbs())
        families = read(engine.metrics)
    finally:
        engine.stop()
    for verb, times in (("sleep", 1), ("wake_up", 1)):
        assert value(families, "sleep_mode_operation_duration_seconds_count", operation=verb) == times
    for verb, times in (("start_weight_update", 1), ("update_weights", 0), ("finish_weight_update", 1)):
        assert value(families, "rl_weight_update_operation_duration_seconds_count", operation=verb) == times


def test_how_the_cache_is_set_up(core: EngineCore) -> None:
    [sample] = read(EngineMetrics(core))["rondo:cache_config_info"].samples
    assert sample.value == 1
    assert sample.labels["block_size"] == "4"
    assert int(sample.labels["num_gpu_blocks"]) == core.pool.groups[0].num_blocks
    assert sample.labels["enable_prefix_caching"] == "True"


def bounds(family: Metric) -> Iterator[float]:
    return (float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket"))


def test_buckets_of_lengths_go_as_far_as_the_context(core: EngineCore) -> None:
    family = read(EngineMetrics(core))["rondo:request_prompt_tokens"]
    assert [*bounds(family)] == [1, 2, 5, 10, 20, 50, 100, 200, float("inf")]


@pytest.mark.parametrize(
    ("most", "bounds"), [(1, (1,)), (100, (1, 2, 5, 10, 20, 50, 100)), (199, (1, 2, 5, 10, 20, 50, 100))]
)
def test_one_two_five(most: int, bounds: tuple[int, ...]) -> None:
    assert one_two_five(most) == bounds


def test_a_value_on_a_bound_is_below_it() -> None:
    distribution = Distribution((1, 2))
    for number in (0.5, 1, 1.5, 2, 9):
        distribution.observe(number)
    assert distribution.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert distribution.total == 14
