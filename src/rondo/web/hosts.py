"""Protection from web pages: requests by another name than the server's, and writes from other sites, are refused.

A page whose name resolves to 127.0.0.1 (DNS rebinding) is same-origin with a server there for the browser, so that it
can read the answers; only the Host header shows its name. A page may also send requests across sites whose answers it
cannot read; their Origin header shows it.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rondo.web.config import ListenConfig, is_loopback
from rondo.web.errors import error_body

SAFE = frozenset(["GET", "HEAD", "OPTIONS"])
ANY = "*"


def protect(app: ASGIApp, config: ListenConfig) -> ASGIApp:
    """Checks Host where the server listens on loopback or names are configured, and Origin where it has no API key."""
    local = is_loopback(config.host)
    hosts = frozenset(name.lower().removesuffix(".") for name in config.allowed_hosts)
    check_host = (local or bool(hosts)) and ANY not in hosts
    check_origin = not config.guarded and ANY not in hosts
    if not (check_host or check_origin):
        return app
    own = hosts | {config.host.lower()}

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host, origin = _header(scope, b"host"), _header(scope, b"origin")
            name = None if host is None else _name(host)
            if check_host and host is not None and not _allowed(name, own):
                await _refusal("Host", host, "host_not_allowed")(scope, receive, send)
                return
            safe = scope["method"] in SAFE
            if check_origin and origin is not None and not safe and not _trusted(origin, name, own):
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


def _header(scope: Scope, name: bytes) -> str | None:
    """Several headers of one name are joined, and so match nothing."""
    values = [value for given, value in scope["headers"] if given == name]
    return b", ".join(values).decode("latin-1") if values else None


def _refusal(header: str, value: str, code: str) -> JSONResponse:
    message = (
        f"the {header} {value[:200]!r} is not allowed here. Use http://127.0.0.1 or http://localhost, or start "
        "the server with --allowed-hosts NAME."
    )
    return JSONResponse(error_body(message, "permission_error", param=header, code=code), status_code=403)
