"""Protection from web pages: requests by another name than the server's, and writes from other sites, are refused.

A page whose name resolves to 127.0.0.1 (DNS rebinding) is same-origin with a server there for the browser, so that it
can read the answers; only the Host header shows its name. A page may also send requests across sites whose answers it
cannot read; their Origin header shows it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rondo.web.config import ListenConfig, is_loopback
from rondo.web.errors import error_body

SAFE = frozenset(["GET", "HEAD", "OPTIONS"])
ANY = "*"


def protect(app: ASGIApp, config: ListenConfig, origins: Collection[str] = ()) -> ASGIApp:
    """Checks Host where the server listens on loopback or names are configured, and Origin where it has no API key.
    `origins` are trusted."""
    local = is_loopback(config.host)
    hosts = frozenset(name.lower().removesuffix(".") for name in config.allowed_hosts)
    check_host = (local or bool(hosts)) and ANY not in hosts
    check_origin = not config.guarded and ANY not in hosts and ANY not in origins
    if not (check_host or check_origin):
        return app
    own = hosts | {config.host.lower()}

    @lru_cache(1024)
    def by_name(host: str) -> bool:
        return _allowed(_name(host), own)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host, origin = _headers(scope)
            if check_host and host is not None and not by_name(host):
                await _refusal("Host", host, "host_not_allowed")(scope, receive, send)
                return
            if check_origin and origin is not None and scope["method"] not in SAFE:
                name = None if host is None else _name(host)
                if origin not in origins and not _trusted(origin, name, own):
                    await _refusal("Origin", origin, "origin_not_allowed")(scope, receive, send)
                    return
        await app(scope, receive, send)

    return guarded


def _allowed(name: str | None, own: Collection[str]) -> bool:
    return name is not None and (name in own or is_loopback(name))


def _trusted(origin: str, host: str | None, own: Collection[str]) -> bool:
    """Web pages have an http origin, or "null" in a sandbox. Other schemes belong to installed applications."""
    if origin == "null":
        return False
    scheme, separator, rest = origin.partition("://")
    if scheme.lower() not in ("http", "https"):
        return bool(separator)
    name = _name(rest)
    return _allowed(name, own) or (name is not None and name == host)


@lru_cache(1024)
def _name(host: str) -> str | None:
    """The name or address in a Host header; None if there is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # a port that is no number raises
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname.removesuffix(".")


def _headers(scope: Scope) -> tuple[str | None, str | None]:
    """Host and Origin. Several headers of one name are joined, and so match nothing."""
    host = origin = None
    for name, value in scope["headers"]:
        if name == b"host":
            host = value if host is None else b"%s, %s" % (host, value)
        elif name == b"origin":
            origin = value if origin is None else b"%s, %s" % (origin, value)
    return (
        None if host is None else host.decode("latin-1"),
        None if origin is None else origin.decode("latin-1"),
    )


def _refusal(header: str, value: str, code: str) -> JSONResponse:
    message = (
        f"the {header} {value[:200]!r} is not allowed here. Use http://127.0.0.1 or http://localhost, or start "
        "the server with --allowed-hosts NAME."
    )
    return JSONResponse(error_body(message, "permission_error", param=header, code=code), status_code=403)
