"""Admin routes: each always needs the admin key."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import InvalidRequest
from rondo.web.errors import error_body
from rondo.web.http import basic_password_of, bearer_of, read_body

Handler = Callable[[Request], Awaitable[Response]]
Reader = Callable[[str], object]

LARGEST_BODY = 1024
"""Maximum bytes of a body on routes without one."""

NOT_CONFIGURED = (
    "this needs the admin key, and this server has none. Start it with --server.admin_key=... (or the variable "
    "RONDO_SERVER_ADMIN_KEY), and send it as 'Authorization: Bearer <key>' or as 'X-Admin-Key: <key>'."
)
WRONG = "this needs the admin key: send it as 'Authorization: Bearer <key>' or as 'X-Admin-Key: <key>'."


def admin_route(path: str, handler: Handler, key: str | None, method: str = "POST") -> Route:
    async def endpoint(request: Request) -> Response:
        refusal = refuse(request, key)
        if refusal is not None:
            return refusal
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)

    return Route(path, endpoint, methods=[method])


def refuse(request: Request, key: str | None) -> Response | None:
    """The error response for a client without the key; None if access is allowed."""
    if key is None:
        return _refusal(403, NOT_CONFIGURED, "permission_error", "admin_key_not_configured")
    bearer = bearer_of(request.headers.raw) or basic_password_of(request.headers.raw)
    given = request.headers["x-admin-key"].encode("latin-1") if "x-admin-key" in request.headers else bearer
    if not hmac.compare_digest(given, key.encode()):
        return _refusal(401, WRONG, "authentication_error", "invalid_admin_key")
    return None


def _refusal(status: int, message: str, kind: str, code: str) -> Response:
    return JSONResponse(error_body(message, kind, code=code), status_code=status)


async def query(request: Request, known: Mapping[str, Reader]) -> dict[str, list[object]]:
    """Query options, each parsed by its function; unknown options and a body are errors."""
    if (await read_body(request, LARGEST_BODY)).strip() not in (b"", b"{}"):
        names = ", ".join(known) or "no options"
        raise InvalidRequest(f"{request.url.path} takes no body: its options ({names}) go after the ?.")
    options: dict[str, list[object]] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no options"
            raise InvalidRequest(f"{name} is not known to {request.url.path}: {takes}.", param=name)
        try:
            options.setdefault(name, []).append(known[name](value))
        except ValueError as error:
            raise InvalidRequest(f"{name} cannot be {value!r}: {error}.", param=name) from error
    return options
