"""What `/openapi.json` says is all there is, and no request that keeps to it, or breaks it, breaks the server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as from_seed
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from rondo.server.openapi import OF_THE_MODEL, OF_THE_OPERATOR, OPEN, openapi_route
from server.running import Running, start

ADMIN = {"X-Admin-Key": "operator"}
KEYS = ADMIN | {"Authorization": "Bearer user"}
HELD = {"/sleep", "/pause"}
"""After these nobody is answered until somebody wakes it."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BOUNDED = settings(max_examples=10, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def served(model_folder) -> Iterator[Running]:
    """So small that whatever is asked for is there soon."""
    config = ServerConfig(
        port=0, served_model_name="tiny", admin_key="operator", api_key="user", allow_priority=True
    )
    yield from start(model_folder, EngineConfig(max_num_seqs=4, max_model_len=24, max_queued=6), config)


@pytest.fixture(scope="module")
def api(served: Running) -> Any:
    return schemathesis.openapi.from_url(served.url + "/openapi.json", timeout=120)


def test_every_route_is_described(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes: list[Any] = []

    def recorded(given: Any) -> Any:
        routes.extend(given)
        return openapi_route(given)

    monkeypatch.setattr("rondo.server.app.openapi_route", recorded)
    for running in start(model_folder):
        paths = httpx.get(running.url + "/openapi.json").json()["paths"]
    described = {(method, path) for path, methods in paths.items() for method in methods}
    served = {
        (m.lower(), route.path.replace(":path", "")) for route in routes for m in route.methods - {"HEAD"}
    }
    assert described == served | {("get", "/openapi.json")}


def test_each_route_says_whose_key_it_needs(served):
    """And needs it: the operator's for what the user's does not open, and the other way round."""
    keys = {"key": {"Authorization": "Bearer user"}, "admin": ADMIN}
    with httpx.Client(base_url=served.url) as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method, operation in methods.items():
                needed = next((name for each in operation.get("security", []) for name in each), None)
                for name, headers in ({"none": {}} | keys).items():
                    if name == "admin" and path in HELD:
                        continue
                    status = client.request(method, path, headers=headers).status_code
                    assert (status == 401) == (needed is not None and needed != name), (path, name, status)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted({**OF_THE_MODEL, **OPEN, **OF_THE_OPERATOR}))
def test_no_request_breaks_it(served: Running, api: Any, name: str) -> None:
    """Those that keep to what is described, and those that do not."""
    method, path = name.split()
    if path in HELD:
        pytest.skip("afterwards nobody would be answered until somebody wakes it")
    operation = api[path][method]
    negative = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    takes = operation.body or operation.query or operation.path_parameters
    cases = st.one_of(operation.as_strategy(), negative) if takes else operation.as_strategy()

    @BOUNDED
    @from_seed(0)
    @given(case=cases)
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=served.url, headers=KEYS, checks=CHECKS, timeout=120)

    ask()
    assert httpx.get(served.url + "/health", timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "return_token_ids": True},
        ),
        ("/v1/completions", {"prompt": "a", "n": 2, "logprobs": 1, "return_token_ids": True}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_events_are_as_described(served: Running, path: str, body: dict[str, Any]) -> None:
    document = httpx.get(served.url + "/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    schema = content["text/event-stream"]["schema"] | {"components": document["components"]}
    validator = jsonschema_rs.validator_for(schema)
    options: dict[str, Any] = (
        {} if path == "/v1/responses" else {"stream_options": {"include_usage": True}, "max_tokens": 4}
    )
    answer = httpx.post(
        served.url + path,
        json={"model": "tiny", "stream": True} | options | body,
        headers=KEYS,
        timeout=60,
    )
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    assert len(lines) > 2
    for line in lines:
        assert validator.is_valid(json.loads(line)), line
        assert "error" not in json.loads(line)
