"""A request's id, its line in the log, and its spans."""

import io
import itertools
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import setup
from rondo.base.telemetry.tracing import Tracer
from rondo.server.config import ServerConfig
from rondo.web.access import operation
from server.running import Running, start
from support.collector import Collector, collecting, values

BODY = {"model": "tiny", "prompt": "abc secret words", "max_tokens": 5, "ignore_eos": True}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/responses", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "embeddings"),
    ],
)
def test_what_a_span_calls_each_route(path: str, name: str) -> None:
    assert operation(path) == name


@pytest.fixture
def lines(running: Running) -> Iterator[io.StringIO]:
    ours, root = logging.getLogger("rondo"), logging.getLogger()
    before, others = (ours.handlers[:], ours.level, ours.propagate), root.handlers[:]
    out = io.StringIO()
    setup("json", "debug", out)
    # A line is written after its answer was read: that of the test before must not come in between.
    httpx.get(running.url + "/v1/models")
    while "/v1/models" not in out.getvalue():
        time.sleep(0.01)
    out.seek(0)
    out.truncate()
    yield out
    ours.handlers[:], ours.level, ours.propagate = before
    root.handlers[:] = others


def access(out: io.StringIO, count: int = 1) -> list[dict[str, Any]]:
    """The access lines, of which there are so many; the last is written after its answer was read."""
    found: list[dict[str, Any]] = []
    for _ in range(3000):
        found = [json.loads(line) for line in out.getvalue().splitlines()]
        found = [line for line in found if line["logger"] == "rondo.access"]
        if len(found) >= count:
            break
        time.sleep(0.01)
    assert len(found) == count, found
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_one_line_a_request(running: Running, lines: io.StringIO, stream: bool) -> None:
    headers = {"X-Request-Id": "mine-1", "Authorization": "Bearer hush"}
    answer = httpx.post(
        running.url + "/v1/completions?key=hush", json={**BODY, "stream": stream}, headers=headers
    )
    assert answer.headers["x-request-id"] == "mine-1"
    [line] = access(lines)
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["request_id"], line["level"], line["model"]) == ("mine-1", "info", "tiny")
    assert (line["output_tokens"], line["finish_reason"]) == (5, "length")
    assert line["id"].startswith("cmpl-")
    if not stream:
        usage = answer.json()["usage"]
        assert (line["prompt_tokens"], line["output_tokens"]) == (usage["prompt_tokens"], 5)
    assert 0 < line["first_token_seconds"] <= line["seconds"]
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"]
    assert 0 < line["decode_seconds"] < line["seconds"]
    assert "cut_off" not in line
    assert not any(word in lines.getvalue() for word in ("hush", "secret"))


def test_several_prompts_and_samples_are_one_line(running: Running, lines: io.StringIO) -> None:
    body = {**BODY, "prompt": ["abc", "def"], "n": 2}
    usage = httpx.post(running.url + "/v1/completions", json=body).json()["usage"]
    [line] = access(lines)
    assert (line["prompt_tokens"], line["output_tokens"]) == (usage["prompt_tokens"], 20)


def test_ids_are_made_where_none_or_a_strange_one_is_given(running: Running) -> None:
    given = ({}, {"X-Request-Id": "a b\tc"}, {"X-Request-Id": "x" * 129}, {"X-Request-Id": ""})
    ids = [httpx.get(running.url + "/v1/models", headers=each).headers["x-request-id"] for each in given]
    assert len(set(ids)) == 4
    assert all(each.startswith("req-") for each in ids)


def test_errors_have_a_line_and_an_id_too(running: Running, lines: io.StringIO) -> None:
    answer = httpx.post(running.url + "/v1/completions", json={**BODY, "model": "nothing"})
    assert answer.status_code == 404
    [line] = access(lines)
    assert (line["status"], line["request_id"]) == (404, answer.headers["x-request-id"])
    assert "prompt_tokens" not in line


def test_a_client_that_leaves(running: Running, lines: io.StringIO) -> None:
    body = {**BODY, "max_tokens": 400, "stream": True}
    with httpx.stream("POST", running.url + "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    [line] = access(lines)
    assert (line["cut_off"], line["finish_reason"]) == (True, "abort")
    assert 0 < line["output_tokens"] < 400


def test_what_machines_ask_all_the_time_is_for_debugging(running: Running, lines: io.StringIO) -> None:
    for path in ("/health", "/metrics"):
        httpx.get(running.url + path)
    assert [line["level"] for line in access(lines, 2)] == ["debug", "debug"]


def test_a_path_cannot_forge_a_line(running: Running, lines: io.StringIO) -> None:
    setup("human", "info", lines)
    httpx.get(running.url + "/%0a%1b[31mERROR" + "x" * 500)
    while "ERROR" not in lines.getvalue():
        time.sleep(0.01)
    [line] = lines.getvalue().splitlines()
    assert " 404 GET /%0a%1b[31mERRORxxx" in line
    assert len(line) <= 80


def test_the_line_for_people_has_80_columns(running: Running, lines: io.StringIO) -> None:
    setup("human", "info", lines)
    answer = httpx.post(running.url + "/v1/completions", json={**BODY, "model": "tiny"})
    while "/v1/completions" not in lines.getvalue():
        time.sleep(0.01)
    [line] = lines.getvalue().splitlines()
    tokens = f"{answer.json()['usage']['prompt_tokens']}→5"
    begin = answer.headers["x-request-id"].removeprefix("req-")[:8]
    duration = r"\d+(ms|\.\ds)"
    assert re.fullmatch(
        rf"[\d:]{{8}} 200 POST /v1/completions tiny {tokens} ttft {duration} {duration} {begin}", line
    )
    assert len(line) <= 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_requests_are_coloured_on_a_terminal_and_json_elsewhere(running: Running, lines: io.StringIO) -> None:
    out: io.StringIO
    for out in (Terminal(), io.StringIO()):
        setup("auto", "info", out)
        httpx.get(running.url + "/v1/models")
        while "/v1/models" not in out.getvalue():
            time.sleep(0.01)
        if out.isatty():
            assert "\x1b[32m200\x1b[0m GET /v1/models" in out.getvalue()
        else:
            assert json.loads(out.getvalue())["path"] == "/v1/models"


def test_no_lines_where_they_are_off(model_folder: Path, lines: io.StringIO) -> None:
    running = start(model_folder, config=ServerConfig(port=0, access_log=False))
    assert "x-request-id" in httpx.get(next(running).url + "/v1/models").headers
    assert next(running, None) is None
    assert "rondo.access" not in lines.getvalue()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture
def traced(model_folder: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    options = ServerConfig(port=0, served_model_name="tiny", otlp_traces_endpoint=collector.url)
    yield from start(model_folder, config=options)


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_request_is_a_span_of_its_callers_trace(traced: Running, collector: Collector) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine-2"}
    before = time.time_ns()
    httpx.post(traced.url + "/v1/completions", json={**BODY, "temperature": 0.5}, headers=headers)
    spans = {span.name: span for span in collector.spans(4)}
    assert set(spans) == {"llm_request", "queue", "prefill", "decode"}
    root = spans["llm_request"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    found = values(root)
    for name, value in {
        "gen_ai.request.id": "mine-2",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.completion_tokens": 5,
        "http.response.status_code": 200,
    }.items():
        assert found[name] == value, name
    assert found["gen_ai.usage.input_tokens"] == found["gen_ai.usage.prompt_tokens"] > 0
    assert 0 < found["gen_ai.latency.time_to_first_token"] < found["gen_ai.latency.e2e"]
    times = [
        (spans[name].start_time_unix_nano, spans[name].end_time_unix_nano)
        for name in ("queue", "prefill", "decode")
    ]
    assert before <= root.start_time_unix_nano <= times[0][0]
    assert times[-1][1] <= root.end_time_unix_nano <= time.time_ns()
    for (_, end), (begin, _) in itertools.pairwise(times):
        assert end == begin
    for name in ("queue", "prefill", "decode"):
        assert spans[name].parent_span_id == root.span_id
    assert b"secret" not in collector.got[0].SerializeToString()


def test_without_a_caller_it_begins_a_trace(traced: Running, collector: Collector) -> None:
    with httpx.stream("POST", traced.url + "/v1/completions", json={**BODY, "stream": True}) as answer:
        answer.read()
    root = next(span for span in collector.spans(4) if span.name == "llm_request")
    assert root.parent_span_id == b""
    assert any(root.trace_id)


def test_what_the_caller_does_not_sample_is_not_sent(traced: Running, collector: Collector) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    httpx.post(traced.url + "/v1/completions", json=BODY, headers=headers)
    httpx.post(traced.url + "/v1/completions", json=BODY)
    assert TRACE not in {span.trace_id.hex() for span in collector.spans(4)}


def test_an_endpoint_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"grpc://x:4317 is not a URL for OTLP over HTTP"):
        Tracer("grpc://x:4317")
