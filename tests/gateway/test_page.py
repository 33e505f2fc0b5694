"""Files of the web page: compression, caching and the headers that protect them."""

import gzip
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from rondo.base.errors import RondoError
from rondo.gateway.routes import page
from rondo.web.errors import on_rondo_error

SCRIPT = b"export const x = 1;" * 100


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    (tmp_path / "assets").mkdir()
    for name, data in (("index.html", b"<!doctype html>"), ("assets/a.js", SCRIPT), ("assets/a.txt", b"x")):
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    app = FastAPI(exception_handlers={RondoError: on_rondo_error})
    app.include_router(page.router)
    return TestClient(app)


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip, br", True), ("br, gzip;q=0.5", True), ("", False), ("gzip;q=0", False)],
)
def test_files_are_compressed_where_the_client_accepts_it(
    client: TestClient, accepted: str, compressed: bool
) -> None:
    response = client.get("/assets/a.js", headers={"accept-encoding": accepted})
    assert response.content == SCRIPT
    assert response.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert response.headers["content-type"].startswith("text/javascript")
    assert response.headers["vary"] == "Accept-Encoding"
    assert "immutable" in response.headers["cache-control"]


def test_nothing_foreign_and_nothing_inline_may_run(client: TestClient) -> None:
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert not any(word in policy for word in ("unsafe", "data:", "http"))
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["none.js", "a.txt", "a.js.gz", "..%2Findex.html", "%2e%2e"])
def test_only_files_of_the_page_are_served(client: TestClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code in (404, 405)


def test_without_a_build_the_page_names_the_command(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "index.html").unlink()
    assert "make page" in client.get("/").text
