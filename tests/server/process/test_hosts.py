"""Public addresses need a key; other names in Host (DNS rebinding) and writes from other sites are refused."""

import asyncio
import logging
import socket

import httpx
import pytest
from starlette.responses import PlainTextResponse

from rondo.base.errors import ConfigError
from rondo.server.config import ServerConfig
from rondo.web.exposure import is_loopback, listen, warn_of_no_key
from rondo.web.hosts import protect


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_public_address_needs_a_key_or_a_flag(host):
    with pytest.raises(ConfigError) as error:
        listen(ServerConfig(host=host, port=0))
    assert error.value.param == "server.api_key"
    for remedy in ("--api-key KEY", "127.0.0.1", "--allow-public-without-key"):
        assert remedy in error.value.message
    for allowed in ({"api_key": "k"}, {"allow_public_without_key": True}):
        listen(ServerConfig(host=host, port=0, **allowed)).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_loopback_address_needs_none(host):
    listen(ServerConfig(host=host, port=0)).close()


def test_a_server_without_a_key_warns(caplog):
    with listen(ServerConfig(port=0)) as listener, caplog.at_level(logging.WARNING, "rondo.server"):
        warn_of_no_key(ServerConfig(port=0, api_key="k"), listener)
        assert not caplog.records
        warn_of_no_key(ServerConfig(port=0), listener)
        assert "no API key is set" in caplog.text
        assert "--api-key" in caplog.text


def test_a_unix_socket_is_local():
    with socket.socket(socket.AF_UNIX) as listener:
        from rondo.web.exposure import is_local

        assert is_local(listener)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *[
            (host, True)
            for host in ("127.9.9.9", "::1", "::ffff:127.0.0.1", "LOCALHOST", "a.localhost.", "::1%lo")
        ],
        *[
            (host, False)
            for host in ("10.0.0.1", "localhost.evil.com", "127.0.0.1.evil.com", "", "::", "0.0.0.0")
        ],
    ],
)
def test_what_is_loopback(host, local):
    assert is_loopback(host) == local


def status(config: dict, method: str = "POST", **headers: str) -> int:
    app = protect(PlainTextResponse("yes"), ServerConfig(**config))

    async def main() -> int:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            answer = await client.request(method, "/v1/x", headers=headers)
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert error["param"] in ("Host", "Origin")
                assert "--allowed-hosts" in error["message"]
            return answer.status_code

    return asyncio.run(main())


GOOD = ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST.", "app.localhost:1"]
BAD = [
    *(
        "evil.com",
        "evil.com:8000",
        "127.0.0.1.evil.com",
        "localhost@evil.com",
        "localhost:x",
        "evil.com#localhost",
    ),
    *("localhost, evil.com", "localhost/evil", "192.168.0.7", "[::1", "", "0.0.0.0:8000"),
]


@pytest.mark.parametrize("host", GOOD)
def test_own_names_are_answered(host):
    assert status({}, Host=host) == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", BAD)
def test_other_names_are_refused(host, method):
    assert status({}, method, Host=host) == 403
    assert status({"api_key": "k"}, method, Host=host) == 403


def test_names_can_be_allowed():
    assert status({"allowed_hosts": ["Box.example"]}, Host="box.example:8000") == 200
    assert status({"allowed_hosts": ["box.example"]}, Host="evil.com") == 403
    assert status({"allowed_hosts": "*"}, Host="evil.com") == 200


def test_a_public_address_goes_by_any_name_unless_names_are_set():
    public = {"host": "0.0.0.0", "api_key": "k"}
    assert status(public, Host="evil.com") == 200
    assert status(public | {"allowed_hosts": ["box"]}, Host="evil.com") == 403
    assert status(public | {"allowed_hosts": ["box"]}, Host="box") == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.com", "null", "http://localhost.evil.com", "evil", "http://", "HTTP://evil"]
)
def test_writes_from_other_sites_are_refused_without_a_key(origin):
    assert status({}, Origin=origin) == 403
    assert status({"host": "0.0.0.0"}, Origin=origin) == 403
    assert status({}, "GET", Origin=origin) == 200
    assert status({"api_key": "k"}, Origin=origin) == 200


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "https://127.0.0.1", "vscode-webview://x", "app://obsidian.md"]
)
def test_own_pages_and_installed_applications_may_write(origin):
    assert status({}, Origin=origin) == 200


def test_a_page_of_the_server_itself_may_write():
    assert status({"host": "0.0.0.0"}, Host="box:8000", Origin="http://box:8000") == 200


def test_a_served_model_refuses_a_rebound_name(running):
    for path in ("/v1/models", "/health", "/metrics"):
        answer = httpx.get(running.url + path, headers={"Host": "evil.com"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
        assert answer.headers["x-request-id"]
