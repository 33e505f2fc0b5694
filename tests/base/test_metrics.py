import pytest
from prometheus_client.parser import text_string_to_metric_families

from rondo.base.telemetry import metrics


def samples(text: bytes) -> dict[str, float]:
    return {
        sample.name + "".join(f"[{v}]" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_three_kinds_are_rendered():
    metrics.counter("test_requests", "requests", ["model"]).labels("demo").inc(3)
    metrics.gauge("rondo:test_running", "running").set(2)
    metrics.histogram("test_seconds", "seconds", buckets=(0.1, 1)).observe(0.5)
    got = samples(metrics.render())
    assert got["rondo:test_requests_total[demo]"] == 3
    assert got["rondo:test_running"] == 2
    assert (got["rondo:test_seconds_bucket[0.1]"], got["rondo:test_seconds_bucket[1.0]"]) == (0, 1)


def test_the_same_metric_twice_is_one():
    assert metrics.gauge("test_same", "doc") is metrics.gauge("rondo:test_same", "doc")
    with pytest.raises(ValueError, match="declared twice"):
        metrics.gauge("test_same", "doc", ["label"])
    with pytest.raises(ValueError, match="declared twice"):
        metrics.counter("test_same", "doc")


def test_alias_repeats_ours_alone():
    metrics.gauge("test_alias", "about rondo: itself", ["label"]).labels("rondo:x").set(7)
    got = samples(metrics.render(alias="vllm:"))
    assert got["vllm:test_alias[rondo:x]"] == got["rondo:test_alias[rondo:x]"] == 7
    assert sum(name.startswith("process_resident") for name in got) == 1
