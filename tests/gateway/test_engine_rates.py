"""Rates of an engine from its counters."""

import pytest

from rondo.gateway.sources.rates import EngineRates


def metrics(generated: int, prompt: int, cached: int, prefix: str = "rondo") -> bytes:
    return (
        "# TYPE x counter\n"
        f'{prefix}:generation_tokens_total{{model_name="a}}b"}} {generated}.0\n'
        f'{prefix}:prompt_tokens_total{{model_name="m"}} {prompt}.0\n'
        f'{prefix}:prompt_tokens_cached_total{{model_name="m"}} {cached}.0\n'
        f'{prefix}:prompt_tokens_by_source_total{{source="x"}} 9e9\n'
    ).encode()


@pytest.mark.parametrize("prefix", ["rondo", "vllm"])
def test_rates_of_the_last_seconds(prefix: str) -> None:
    rates = EngineRates()
    assert rates.tokens_per_second is None
    rates.note(metrics(100, 10, 0, prefix), 0.0)
    assert rates.tokens_per_second is rates.prefix_hit_rate is None
    rates.note(metrics(300, 110, 50, prefix), 4.0)
    assert (rates.tokens_per_second, rates.prefix_hit_rate) == (50.0, 0.5)
    rates.note(metrics(300, 110, 50, prefix), 30.0)
    rates.note(metrics(300, 110, 50, prefix), 35.0)
    assert (rates.tokens_per_second, rates.prefix_hit_rate) == (0.0, 0.5)
    rates.note(metrics(300, 110, 50, prefix), 90.0)
    assert rates.prefix_hit_rate is None


def test_a_restart_begins_anew_and_other_texts_are_ignored() -> None:
    rates = EngineRates()
    rates.note(metrics(100, 10, 0), 0.0)
    rates.note(metrics(5, 1, 0), 1.0)
    assert rates.tokens_per_second is None
    rates.note(b"<html>", 2.0)
    assert rates.tokens_per_second is rates.prefix_hit_rate is None


def test_metrics_repeated_under_a_second_prefix_count_once() -> None:
    rates = EngineRates()
    rates.note(metrics(0, 0, 0) + metrics(0, 0, 0, "vllm"), 0.0)
    rates.note(metrics(40, 10, 5) + metrics(40, 10, 5, "vllm"), 4.0)
    assert (rates.tokens_per_second, rates.prefix_hit_rate) == (10.0, 0.5)


def test_older_counters_of_vllm() -> None:
    rates = EngineRates()
    rates.note(b"vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n", 0.0)
    rates.note(b"vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 2\n", 1.0)
    assert rates.prefix_hit_rate == 0.25
