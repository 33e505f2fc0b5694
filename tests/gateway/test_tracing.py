"""Spans of the gateway, joined with those of the engine."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.server.config import ServerConfig
from server.running import start
from support.collector import Collector, collecting, values
from support.served import write_model

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting() as running:
        yield running


@pytest.fixture
def gateway(collector: Collector, tmp_path: Path) -> Iterator[RunningGateway]:
    config = ServerConfig(port=0, served_model_name="tiny", otlp_traces_endpoint=collector.url)
    for engine in start(write_model(tmp_path / "model"), config=config):
        with gateway_of([engine.url], tmp_path, otlp_traces_endpoint=collector.url) as running:
            yield running


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_span_is_a_child_of_the_gateways(
    gateway: RunningGateway, collector: Collector, stream: bool
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "other=1", "X-Request-Id": "mine"}
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 4, "ignore_eos": True, "stream": stream}
    answer = httpx.post(gateway.url + "/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    spans = {span.name: span for span in collector.spans(5)}
    assert set(spans) == {"gateway_request", "llm_request", "queue", "prefill", "decode"}
    own, engine = spans["gateway_request"], spans["llm_request"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert own.parent_span_id.hex() == PARENT
    assert engine.parent_span_id == own.span_id
    assert own.start_time_unix_nano <= engine.start_time_unix_nano
    assert own.trace_state == "other=1"
    found = values(own)
    expected = {
        "gen_ai.request.id": "mine",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.output_tokens": 4,
        "http.response.status_code": 200,
        "rondo.retries": 0,
        "url.path": "/v1/completions",
    }
    assert {name: found[name] for name in expected} == expected
    assert found["rondo.engine"] == next(iter(gateway.gateway.fleet.engines.values())).instance.url
    assert 0 <= found["rondo.queue_seconds"] <= found["rondo.first_byte_seconds"]
    assert values(engine)["gen_ai.request.id"] == "mine"


def test_retries_and_refusals_are_counted(collector: Collector, tmp_path: Path) -> None:
    with (
        served(Stub(mode="die")) as first,
        served(Stub()) as second,
        gateway_of([first.url, second.url], tmp_path, otlp_traces_endpoint=collector.url) as running,
    ):
        for _ in range(4):
            assert httpx.post(running.url + "/v1/completions", json={"model": "m"}).status_code == 200
        assert httpx.post(running.url + "/v1/completions", json={"model": "none"}).status_code == 404
        spans = [values(span) for span in collector.spans(5)]
    retried = [span for span in spans if span["rondo.retries"]]
    assert retried
    assert all(span["rondo.engine"] == second.url for span in retried)
    [refused] = [span for span in spans if span["http.response.status_code"] == 404]
    assert "rondo.engine" not in refused
    tracestates = {request["headers"].get("traceparent", "") for request in second.requests}
    assert all(text.startswith("00-") for text in tracestates)
