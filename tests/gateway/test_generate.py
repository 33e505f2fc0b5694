"""The generate API, with a worker and an engine whose failures the test chooses."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from hypothesis import strategies as st

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.errors import Overloaded
from rondo.client.http import Client
from rondo.client.protocol.item import ITEM_PATHS, item_text
from rondo.control.queue.work import Group, QueuedRequest
from rondo.control.store.pending import failed, succeeded
from rondo.gateway.routes.queued import generate_files
from support.waiting import wait_until
from worker.running import worker_of

QUEUE = {"rest": 0.01, "longest_rest": 0.05, "attempts": 2, "sweep_every": 0.05}


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[tuple[RunningGateway, Stub]]:
    with ExitStack() as stack:
        stub = stack.enter_context(served(Stub()))
        gateway = stack.enter_context(gateway_of([stub.url], tmp_path, queue=QUEUE))
        stack.enter_context(worker_of(gateway.url, stub.url))
        yield gateway, stub


def post(gateway: RunningGateway, path: str, body: Any, **options: Any) -> Any:
    response = httpx.post(f"{gateway.url}{path}", json=body, timeout=120, **options)
    assert response.status_code == 200, response.text
    return response.json()


def test_prompts_of_each_form_are_answered_in_order(setup) -> None:
    gateway, stub = setup
    prompts = [
        "a",
        {"prompt": "b"},
        {"messages": [{"role": "user", "content": "c"}]},
        {"text": "d", "images": ["x"]},
    ]
    results = post(gateway, "/generate", {"prompts": prompts, "model": "m"})["results"]
    assert [each["error"] for each in results] == [None] * 4
    assert [each["request_id"][-10:] for each in results] == [f"_{place:09d}" for place in range(4)]
    assert results[0]["response"] == "ünï"
    assert (results[0]["prompt_tokens"], results[0]["completion_tokens"], results[0]["token_count"]) == (
        3,
        2,
        5,
    )
    sent = {
        each["body"].get("prompt") or json.dumps(each["body"]["messages"]): each for each in stub.requests
    }
    assert {each["path"] for each in stub.requests} == {"/v1/completions", "/v1/chat/completions"}
    assert sent["a"]["body"] == {"model": "m", "prompt": "a", "max_tokens": 16, "temperature": 0.0}


SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "n": 2,
    "seed": 3,
    "stop": ["x"],
    "stop_token_ids": [1],
    "logprobs": 2,
    "logit_bias": {"5": 1.0},
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "ignore_eos": True,
    "max_tokens": 7,
}


def test_every_sampling_field_reaches_the_engine(setup) -> None:
    gateway, stub = setup
    post(gateway, "/v1/generate", {"prompts": ["a"], **SAMPLING})
    assert stub.requests[0]["body"] == {"model": "m", "prompt": "a", **SAMPLING}
    own = {"prompt": "b", "temperature": 0.1, "max_tokens": None}
    post(gateway, "/v1/generate", {"prompts": [own], **SAMPLING})
    assert stub.requests[1]["body"] == {"model": "m", "prompt": "b", **SAMPLING, "temperature": 0.1}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    post(gateway, "/v1/generate", {"prompts": ["c"], "tools": tools, "tool_choice": "auto"})
    body = stub.requests[2]["body"]
    assert (body["messages"], body["tools"]) == ([{"role": "user", "content": "c"}], tools)


def test_without_waiting_the_ids_return_at_once_and_results_follow(setup) -> None:
    gateway, stub = setup
    stub.mode = "stall"
    shown = post(gateway, "/v1/generate", {"prompts": ["a", "b"], "wait": 0})["results"]
    assert [each["response"] for each in shown] == [None, None]
    ids = [each["request_id"] for each in shown]
    late = post(gateway, "/v1/generate/get_results", {"request_ids": ids[:1], "wait": 0.05})["results"]
    assert late == [{"request_id": ids[0], "response": None, "error": None}]
    stub.released.set()
    whole = post(gateway, "/v1/generate/get_results", {"request_ids": [ids[0].rpartition("_")[0]]})["results"]
    assert [each["response"] for each in whole] == ["ünï", "ünï"]


def test_ids_that_are_repeated_are_answered_once_and_long_answers_come_in_parts(
    setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = setup
    monkeypatch.setattr("rondo.gateway.queued.streams.PART_BYTES", 300)
    monkeypatch.setattr("rondo.gateway.routes.queued.generate_files.SHOWN_AT_A_TIME", 3)
    given = post(gateway, "/generate", {"prompts": ["a"] * 8})["results"]
    ids = [each["request_id"] for each in given]
    group = ids[0].rpartition("_")[0]
    for asked in ([group] * 1000, [ids[3], group, *ids], [*reversed(ids), *ids, group]):
        assert post(gateway, "/v1/generate/get_results", {"request_ids": asked})["results"] == given
    some = post(gateway, "/v1/generate/get_results", {"request_ids": [ids[5], ids[2], ids[5]]})["results"]
    assert some == [given[5], given[2]]
    found = post(gateway, "/v1/generate/download", {"request_id": group})
    assert found["results"] == {each["request_id"]: each | {"is_acked": True} for each in given}
    assert (found["current_index"], found["total_requests"], found["work_queue_id"]) == (8, 8, group)


def test_a_stream_has_each_result_as_it_arrives(setup) -> None:
    gateway, _ = setup
    text = httpx.post(
        f"{gateway.url}/v1/generate", json={"prompts": ["a", "b"], "stream": True}, timeout=120
    ).text
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data:")]
    assert events[-1] == "[DONE]"
    assert {json.loads(event)["request_id"][-1] for event in events[:-1]} == {"0", "1"}


def test_an_engines_refusal_is_the_error_at_once_and_a_retry_answers(setup) -> None:
    gateway, stub = setup
    stub.mode = "error"
    (result,) = post(gateway, "/v1/generate", {"prompts": ["a"]})["results"]
    assert (result["response"], result["error"]) == (None, "no such field")
    assert len(stub.requests) == 1, "a refusal is final"
    with Client(gateway.url) as client:
        (dead,) = client.dead_letters()["data"]
        assert (dead["id"], dead["status"], dead["attempts"]) == (result["request_id"], 400, 1)
        assert client.queue_summary()["dead"] == 1
        stub.mode = "ok"
        assert client.retry_request(dead["id"]) == {"changed": 1}
    (again,) = post(gateway, "/v1/generate/get_results", {"request_ids": [dead["id"]]})["results"]
    assert again["response"] == "ünï"


def test_a_prompt_that_breaks_the_connection_becomes_a_dead_letter_after_its_attempts(setup) -> None:
    gateway, stub = setup
    stub.mode = "die"
    (result,) = post(gateway, "/v1/generate", {"prompts": ["poison"]})["results"]
    assert "did not complete its response" in result["error"]
    assert len(stub.requests) == 2


def test_an_engine_without_capacity_costs_no_attempt(setup) -> None:
    gateway, stub = setup
    stub.mode = "refuse"
    (id,) = (
        each["request_id"] for each in post(gateway, "/v1/generate", {"prompts": ["a"], "wait": 0})["results"]
    )
    wait_until(lambda: len(stub.requests) >= 3)
    stub.mode = "ok"
    (result,) = post(gateway, "/v1/generate/get_results", {"request_ids": [id]})["results"]
    assert result["response"] == "ünï"
    with Client(gateway.url) as client:
        assert client.queued_request(id)["attempts"] == 1


def test_an_idempotency_key_answers_once(setup) -> None:
    gateway, stub = setup
    body, key = {"prompts": ["a", "b"]}, {"Idempotency-Key": "k"}
    with ThreadPoolExecutor(4) as pool:
        shown = [pool.submit(post, gateway, "/v1/generate", body, headers=key) for _ in range(4)]
        ids = {each["request_id"] for one in shown for each in one.result()["results"]}
    assert len(ids) == len(stub.requests) == 2
    refused = httpx.post(f"{gateway.url}/v1/generate", json={"prompts": ["c"]}, headers=key, timeout=60)
    assert refused.status_code == 409


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompts": ["a"], "model": "other"}, 404, "model"),
        ({"prompts": "a"}, 400, "prompts"),
        ({"prompts": [{"x": 1}]}, 400, "prompts"),
        ({"prompts": [{"prompt": 3}]}, 400, "prompts"),
        ({"prompts": ["a"], "priority": 9999}, 400, "priority"),
        ({"prompts": ["a"], "wait": -1}, 400, "wait"),
        ({}, 400, "prompts"),
    ],
)
def test_wrong_requests_are_refused_with_their_field(setup, body: Any, status: int, param: str) -> None:
    gateway, _ = setup
    response = httpx.post(f"{gateway.url}/v1/generate", json=body, timeout=60)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@hypothesis.given(
    path=st.sampled_from(sorted(ITEM_PATHS)), messages=JSON, fields=st.dictionaries(st.text(), JSON)
)
def test_submissions_with_any_json_are_listed(path: str, messages: Any, fields: dict[str, Any]) -> None:
    body = json.dumps({**fields, "messages": messages}).encode("utf-8", "surrogatepass")
    first = QueuedRequest("id", "m", "queued", item_text(path, body), 0, None, None, None)
    row = generate_files._row(Group("id", "me", 1, 1, True, 0, None), first)
    assert len(row.prompt_preview) <= generate_files.PREVIEW
    assert generate_files._item(first)["path"] == path


@pytest.mark.parametrize(
    ("messages", "preview"), [('["x"]', "x"), ('{"a": 1}', ""), ("1e999", ""), ("[[1], [2]]", "[2]")]
)
def test_messages_of_another_form_are_listed(setup, messages: str, preview: str) -> None:
    gateway, _ = setup
    body = '{"items": [{"path": "/v1/chat/completions", "body": {"model": "m", "messages": HERE}}]}'
    body = body.replace("HERE", messages)
    headers = {"Content-Type": "application/json"}
    group = httpx.post(f"{gateway.url}/v1/queue/groups", content=body, headers=headers, timeout=60).json()
    rows = httpx.get(f"{gateway.url}/v1/generate/list_requests", timeout=60).json()["rows"]
    assert [row["prompt_preview"] for row in rows] == [preview]
    shown = httpx.get(f"{gateway.url}/v1/generate/request/{group['id']}", timeout=60)
    assert shown.status_code == 200, shown.text


@pytest.mark.parametrize(
    "field",
    [
        {"store": True},
        {"background": True},
        {"previous_response_id": "resp_1"},
        {"conversation": {"id": "c"}},
    ],
)
def test_fields_of_stored_responses_are_refused(setup, field: dict[str, Any]) -> None:
    gateway, _ = setup
    item = {"path": "/v1/responses", "body": {"model": "m", "input": "x", "store": False, **field}}
    refused = httpx.post(f"{gateway.url}/v1/queue/groups", json={"items": [item]}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(field)))


def test_a_file_of_prompts_is_uploaded_and_its_results_downloaded(setup) -> None:
    gateway, stub = setup
    prompts = [
        {"prompt": f"é{place}", "model": None, "max_tokens": None, "request_type": "generate"}
        for place in range(2500)
    ]
    sent = {"file": ("requests.json", json.dumps(prompts).encode())}
    shown = httpx.post(f"{gateway.url}/v1/generate/upload", files=sent, timeout=120).json()
    assert shown["error"] is None
    downloaded = partial(post, gateway, "/v1/generate/download", {"request_id": shown["request_id"]})
    wait_until(downloaded)
    result = downloaded()
    assert result["current_index"] == result["total_requests"] == 2500 == len(result["results"])
    assert {each["response"] for each in result["results"].values()} == {"ünï"}
    assert len(stub.requests) == 2500
    assert stub.requests[0]["body"]["max_tokens"] == 128
    rows = httpx.get(f"{gateway.url}/v1/generate/list_requests", timeout=60).json()["rows"]
    assert [(row["request_count"], row["status"], row["prompt_preview"]) for row in rows] == [
        (2500, "completed", "é0")
    ]
    one = httpx.get(f"{gateway.url}/v1/generate/request/{shown['request_id']}_000000007", timeout=60).json()
    assert one["request"][0]["body"]["prompt"] == "é7"

    def metrics() -> Any:
        return httpx.get(f"{gateway.url}/v1/generate/metrics", timeout=60).json()

    wait_until(lambda: metrics()["requests"] == 2500)  # they are written after a pause
    assert metrics()["queue_depth"] == 0


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1, 2", b'[{"prompt": "a"}] x', b"[\xff]", b'["text"]', b'[{"prompt": "a"} {}]']
)
def test_files_that_are_no_array_of_objects_are_refused(setup, content: bytes) -> None:
    gateway, _ = setup
    response = httpx.post(f"{gateway.url}/v1/generate/upload", files={"file": ("a", content)}, timeout=60)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
    assert httpx.get(f"{gateway.url}/v1/queue", timeout=60).json()["waiting"] == []


def test_a_quota_that_is_spent_during_an_upload_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_files, "AT_A_TIME", 2)
    with gateway_of([], tmp_path) as gateway:
        left = iter([succeeded(None), failed(Overloaded("the quota is spent"))])
        monkeypatch.setattr(gateway.gateway.usage, "check_quota", lambda key: next(left))
        content = json.dumps([{"prompt": "x", "model": "m"}] * 5)
        answer = httpx.post(gateway.url + "/v1/generate/upload", files={"file": ("x.json", content)})
        assert answer.status_code == 429
        assert gateway.gateway.queue.queue.counts().result() == {("m", "cancelled"): 2}


def test_scalarlm_workers_lease_and_finish(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        body = {
            "prompts": ["a", {"messages": [{"role": "user", "content": "b"}]}],
            "temperature": 0.5,
            "wait": 0,
        }
        ids = [each["request_id"] for each in post(gateway, "/v1/generate", body)["results"]]
        work = post(gateway, "/v1/generate/get_work", {"batch_size": 8, "loaded_adaptor_count": 0})
        first, second = work["requests"]
        assert (first["request_id"], first["prompt"], first["temperature"], first["max_tokens"]) == (
            ids[0],
            "a",
            0.5,
            16,
        )
        assert second["chat_request"]["messages"] == [{"role": "user", "content": "b"}]
        assert work["new_adaptors"] == {"new_adaptors": []}
        done = {"request_id": ids[0], "response": "A", "prompt_tokens": 1, "completion_tokens": 2}
        failed = {"request_id": ids[1], "error": "no"}
        assert post(gateway, "/v1/generate/finish_work", {"requests": [done, failed]}) == {
            "verdicts": ["done", "dead"]
        }
        results = post(gateway, "/v1/generate/get_results", {"request_ids": ids})["results"]
        assert [(each["response"], each["error"]) for each in results] == [("A", None), (None, "no")]
        assert results[0]["token_count"] == 3
        assert post(gateway, "/v1/generate/get_adaptors", {"loaded_adaptor_count": 0}) == {"new_adaptors": []}


def test_a_cleared_queue_answers_cancelled(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        ids = [
            each["request_id"]
            for each in post(gateway, "/v1/generate", {"prompts": ["a"], "wait": 0})["results"]
        ]
        assert post(gateway, "/v1/generate/clear_queue", None) == {"cancelled": 1}
        (result,) = post(gateway, "/v1/generate/get_results", {"request_ids": ids})["results"]
        assert result["error"] == "cancelled"
