"""Requests that schemathesis generates from `/openapi.json`: none causes a server error, and each response is as
described."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
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

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.key import Rights
from rondo.gateway.app import ROUTERS
from rondo.gateway.auth import PROXIED
from rondo.gateway.routes.security import route_table

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BOUNDED = settings(max_examples=5, suppress_health_check=list(HealthCheck), database=None)
ENDLESS = "/v1/engines/events"
PAGE = {"/", "/assets/{name}"}
DESCRIBED = sorted(
    {
        (method, path.replace(":path", ""))
        for method, path, _ in route_table(ROUTERS)
        if path not in PAGE and path != ENDLESS
    }
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("api")
    with served(Stub()) as stub, gateway_of([stub.url], folder, keys="required") as running:
        yield running


@pytest.fixture(scope="module")
def admin(gateway: RunningGateway) -> dict[str, str]:
    return {"Authorization": f"Bearer {gateway.gateway.keys.make('admin', Rights('admin')).result()[1]}"}


@pytest.fixture(scope="module")
def api(gateway: RunningGateway) -> Any:
    return schemathesis.openapi.from_url(gateway.url + "/openapi.json", timeout=120)


def test_every_route_is_described(gateway: RunningGateway) -> None:
    paths = httpx.get(gateway.url + "/openapi.json", timeout=120).json()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {*DESCRIBED, ("GET", ENDLESS)}
    assert set(PROXIED) <= set(paths)
    for methods in paths.values():
        for operation in methods.values():
            assert "422" not in operation["responses"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("method", "path"), DESCRIBED)
def test_no_request_breaks_it(
    gateway: RunningGateway, admin: dict[str, str], api: Any, method: str, path: str
) -> None:
    operation = api[path][method]
    negative = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    takes = operation.body or operation.query or operation.path_parameters
    cases = st.one_of(operation.as_strategy(), negative) if takes else operation.as_strategy()

    @BOUNDED
    @from_seed(0)
    @given(case=cases)
    def send(case: Any) -> None:
        response = case.call(base_url=gateway.url, headers=admin, timeout=120)
        if response.status_code == 503 and path.startswith(("/ready", "/v1/health")):
            return  # an engine that a generated request registered is unreachable
        case.validate_response(response, checks=CHECKS)

    send()
    assert httpx.get(gateway.url + "/health", timeout=60).status_code == 200
