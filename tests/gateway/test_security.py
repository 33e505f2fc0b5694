"""Keys on every route: the table of routes is made from the application, so that a new route cannot be forgotten."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.key import Rights
from rondo.control.store.clock import microseconds
from rondo.gateway.app import ROUTERS
from rondo.gateway.routes.security import ADMIN, ANY, OPEN, WORKER, route_table

OPEN_ROUTES = {
    "/health",
    "/v1/health/live",
    "/v1/health/keepalive",
    "/ready",
    "/v1/health/ready",
    "/v1/health",
    "/",
    "/assets/{name}",
}

CLIENT = httpx.Client(timeout=60)
"""One for all requests: making one costs more than a request."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("keys")
    with served(Stub(models=["m", "n"])) as stub, gateway_of([stub.url], folder, keys="required") as running:
        yield running


def key(gateway: RunningGateway, name: str, rights: Rights | None = None) -> dict[str, str]:
    _, text = gateway.gateway.keys.make(name, rights or Rights()).result()
    return {"authorization": f"Bearer {text}"}


def request(gateway: RunningGateway, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    path = path.replace("{id}", "x").replace("{part}", "x").replace("{name:path}", "m").replace("{name}", "x")
    body = {"model": "m"} if method == "POST" else None
    if path == "/v1/engines/events":  # it does not end
        with CLIENT.stream(method, gateway.url + path, headers=headers) as response:
            if response.status_code != 200:
                response.read()
            return response
    return CLIENT.request(method, gateway.url + path, json=body, headers=headers)


def table() -> list[tuple[str, str, str]]:
    return list(route_table(ROUTERS))


def test_only_probes_and_the_page_need_no_key(gateway: RunningGateway) -> None:
    assert {path for _, path, scope in table() if scope == OPEN} == OPEN_ROUTES
    assert len(table()) > 25
    others = {route.path for route in gateway.gateway.control.routes if isinstance(route, Route)}
    assert others - {path for _, path, _ in table()} == {"/openapi.json"}, (
        "a route that the table does not list"
    )


def test_each_route_with_a_missing_wrong_revoked_and_expired_key(gateway: RunningGateway) -> None:
    revoked = key(gateway, "revoked")
    id = revoked["authorization"].split("-")[1]
    gateway.gateway.keys.revoke(id).result()
    expired = key(gateway, "expired", Rights(expires=microseconds() - 1))
    cases = {
        "missing_api_key": {},
        "invalid_api_key": {"authorization": "Bearer rk-000000000000-" + "x" * 43},
        "revoked_api_key": revoked,
        "expired_api_key": expired,
    }
    for method, path, scope in table():
        for code, headers in cases.items():
            response = request(gateway, method, path, headers)
            if scope == OPEN:
                assert response.status_code != 401, path
            else:
                assert (path, response.status_code, response.json()["error"]["code"]) == (path, 401, code)


def test_each_route_with_a_key_out_of_its_scope(gateway: RunningGateway) -> None:
    headers = key(gateway, "files only", Rights(scopes=("files",)))
    for method, path, scope in table():
        response = request(gateway, method, path, headers)
        if scope in (OPEN, ANY, "files"):
            assert response.status_code not in (401, 403), path
        else:
            code = {ADMIN: "admin_only", WORKER: "worker_only"}.get(scope, "scope_missing")
            assert (path, response.status_code, response.json()["error"]["code"]) == (path, 403, code)


def test_a_user_reaches_no_admin_route_and_an_admin_reaches_all(gateway: RunningGateway) -> None:
    user, admin = key(gateway, "user"), key(gateway, "admin", Rights("admin"))
    for method, path, scope in table():
        assert (request(gateway, method, path, user).status_code == 403) == (scope in (ADMIN, WORKER)), path
        assert request(gateway, method, path, admin).status_code not in (401, 403, 500), path


def test_a_worker_reaches_its_routes_alone(gateway: RunningGateway) -> None:
    headers = key(gateway, "worker", Rights("worker"))
    for method, path, scope in table():
        refused = request(gateway, method, path, headers).status_code == 403
        assert refused == (scope not in (OPEN, ANY, WORKER)), path


def test_models_are_limited_to_those_of_the_key(gateway: RunningGateway) -> None:
    headers = key(gateway, "m alone", Rights(models=("m",)))
    models = httpx.get(gateway.url + "/v1/models", headers=headers).json()["data"]
    assert [card["id"] for card in models] == ["m"]
    assert httpx.get(gateway.url + "/v1/models/n", headers=headers).status_code == 404
    refused = httpx.post(gateway.url + "/v1/completions", json={"model": "n"}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")


def test_engines_and_workers_show_the_models_of_the_key(gateway: RunningGateway) -> None:
    gateway.gateway.queue.note_worker("w", ["m", "n"])
    shown = []
    for headers in (key(gateway, "m alone", Rights(models=("m",))), key(gateway, "all")):
        for path in ("/v1/engines", "/v1/queue/workers"):
            (row,) = httpx.get(gateway.url + path, headers=headers).json()["data"]
            shown.append(row["models"])
    assert shown == [["m"], ["m"], ["m", "n"], ["m", "n"]]


def test_counts_of_the_queue_are_those_of_the_key(gateway: RunningGateway) -> None:
    user, other, admin = key(gateway, "user"), key(gateway, "other"), key(gateway, "admin", Rights("admin"))
    items = [{"path": "/v1/completions", "body": {"model": "m", "prompt": "x"}}]
    made = httpx.post(gateway.url + "/v1/queue/groups", json={"items": items}, headers=user)
    assert made.status_code == 201
    numbers = []
    for headers in (user, other, admin):
        summary = httpx.get(gateway.url + "/v1/queue", headers=headers).json()
        metrics = httpx.get(gateway.url + "/v1/generate/metrics", headers=headers).json()
        numbers.append((summary["models"].get("m", {}).get("queued", 0), metrics["queue_depth"]))
    httpx.post(f"{gateway.url}/v1/queue/groups/{made.json()['id']}/cancel", headers=user)
    assert numbers == [(1, 1), (0, 0), (1, 1)]


def test_requests_that_are_malformed_or_too_large_are_not_queued(tmp_path: Path) -> None:
    with gateway_of([], tmp_path, max_body_bytes=2000) as gateway:

        def submit(prompt: bytes) -> tuple[int, str]:
            item = b'{"path": "/v1/completions", "body": {"model": "m", "prompt": "%s"}}' % prompt
            headers = {"content-type": "application/json"}
            call = b'{"items": [%s]}' % item
            answer = httpx.post(gateway.url + "/v1/queue/groups", content=call, headers=headers)
            return answer.status_code, answer.json().get("error", {}).get("param")

        assert submit(b"\xff") == (400, "body")
        assert submit(b"x" * 2000) == (400, "items.0.body")
        assert submit(b"x") == (201, None)
        prompts = {"prompts": ["x" * 2000], "model": "m"}
        answer = httpx.post(gateway.url + "/v1/generate", json=prompts)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompts")


def test_a_spent_quota_ends_additions_and_retries(gateway: RunningGateway) -> None:
    headers = key(gateway, "spent", Rights(tokens_per_day=4))
    url = gateway.url + "/v1/queue/groups"
    group = httpx.post(url, json={"items": [], "sealed": False}, headers=headers).json()["id"]
    answer = httpx.post(gateway.url + "/v1/completions", json={"model": "m"}, headers=headers)
    assert answer.status_code == 200
    extended = httpx.post(f"{url}/{group}/items", json={"at": 0}, headers=headers)
    retried = httpx.post(f"{url}/{group}/retry", headers=headers)
    one = httpx.post(f"{gateway.url}/v1/queue/requests/{group}_000000000/retry", headers=headers)
    assert [each.status_code for each in (extended, retried, one)] == [429] * 3


def test_keys_are_made_listed_used_and_revoked_over_http(gateway: RunningGateway) -> None:
    admin = key(gateway, "admin", Rights("admin"))
    body = {"name": "new", "requests_per_minute": 2, "expires_in": 3600}
    made = httpx.post(gateway.url + "/v1/keys", json=body, headers=admin).json()
    own = {"authorization": f"Bearer {made['key']}"}
    assert httpx.get(gateway.url + "/v1/key", headers=own).json()["name"] == "new"
    listed = httpx.get(gateway.url + "/v1/keys", headers=admin).json()["data"]
    assert [each["key"] for each in listed] == [None] * len(listed)
    answers = [
        httpx.post(gateway.url + "/v1/completions", json={"model": "m"}, headers=own) for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
    assert answers[2].headers["retry-after"]
    assert answers[2].headers["x-ratelimit-limit-requests"] == "2"
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"
    assert answers[2].headers["x-ratelimit-reset-requests"].endswith("s")
    rows = httpx.get(gateway.url + "/v1/usage", headers=own).json()["data"]
    assert [(row["key"], row["requests"]) for row in rows] == [(made["id"], 2)]
    httpx.delete(f"{gateway.url}/v1/keys/{made['id']}", headers=admin)
    assert httpx.get(gateway.url + "/v1/key", headers=own).json()["error"]["code"] == "revoked_api_key"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x", "scopes": ["all"]}, "scopes.0"),
        ({"name": "x", "requests_per_minute": 0}, "requests_per_minute"),
        ({"name": "x", "admin": True}, "admin"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x", "models": ["a,b"]}, "models"),
    ],
)
def test_a_wrong_key_request_names_its_field(
    gateway: RunningGateway, body: dict[str, object], param: str
) -> None:
    admin = key(gateway, "admin", Rights("admin"))
    response = httpx.post(gateway.url + "/v1/keys", json=body, headers=admin)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_spent_daily_quota_is_a_429(gateway: RunningGateway) -> None:
    headers = key(gateway, "quota", Rights(tokens_per_day=4))
    answers = [
        httpx.post(gateway.url + "/v1/completions", json={"model": "m"}, headers=headers) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 429]
    limits = {name: answers[1].headers[f"x-ratelimit-{name}-tokens"] for name in ("limit", "remaining")}
    assert limits == {"limit": "4", "remaining": "0"}


def test_usage_of_another_key_needs_an_admin(gateway: RunningGateway) -> None:
    user = key(gateway, "user")
    response = httpx.get(gateway.url + "/v1/usage?key=other", headers=user)
    assert response.status_code == 403


def test_where_keys_are_optional_a_placeholder_is_none_and_a_wrong_key_is_refused(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, keys="optional") as running:
        for text, status in (("none", 200), ("EMPTY", 200), ("rk-wrong", 401)):
            headers = {"authorization": f"Bearer {text}"}
            answer = httpx.post(running.url + "/v1/completions", json={"model": "m"}, headers=headers)
            assert answer.status_code == status
