"""Errors in OpenAI's shape."""

import logging
import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rondo.base.errors import InvalidRequest, Overloaded, RondoError

log = logging.getLogger("rondo.server")

RETRY_SECONDS = 1.0
"""For errors that state no time."""
KINDS = {401: "authentication_error", 404: "invalid_request_error", 405: "invalid_request_error"}


class BodyTooLarge(InvalidRequest):
    status = 413


class UnsupportedMedia(InvalidRequest):
    status = 415


class BodyTimeout(InvalidRequest):
    status = 408


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of_rondo(error: RondoError) -> JSONResponse:
    after: float | None = getattr(error, "after", RETRY_SECONDS if isinstance(error, Overloaded) else None)
    headers: dict[str, str] = dict(getattr(error, "headers", {}))
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    if isinstance(error, BodyTooLarge | BodyTimeout):
        headers = {"Connection": "close"}  # the rest of the body is not waited for
    body = error_body(error.message, error.kind, error.param, error.code)
    return JSONResponse(body, status_code=error.status, headers=headers)


async def on_rondo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RondoError)
    return of_rondo(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        404: f"there is no {request.url.path} here. Try /v1/models, /v1/chat/completions or /v1/completions.",
        405: f"{request.method} is not allowed on {request.url.path}.",
    }.get(error.status_code, error.detail)
    body = error_body(message, KINDS.get(error.status_code, "invalid_request_error"))
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def on_bug(request: Request, error: Exception) -> Response:
    return bug()


def bug() -> JSONResponse:
    """The client learns that it is our fault; the traceback is in the log."""
    return JSONResponse(
        error_body("internal error; the server's log has the details.", "internal_error"), status_code=500
    )
