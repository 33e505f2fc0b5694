"""Errors that a user can cause, each with its remedy.

A `RondoError` is shown as one line: the command line prints it and exits with `exit_code`, the server sends it in
OpenAI's shape with `status`. Any other exception is a bug, with a traceback in the log.
"""

from __future__ import annotations


class RondoError(Exception):
    """An error with its cause and remedy. `param` names the invalid field, `code` is for programs."""

    status = 500
    exit_code = 1
    kind = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return self.message


class ConfigError(RondoError):
    status = 400
    exit_code = 2
    kind = "invalid_request_error"


class InvalidRequest(RondoError):
    status = 400
    exit_code = 2
    kind = "invalid_request_error"


class ModelError(RondoError):
    """A checkpoint, adapter or tokenizer that cannot be used as it is."""

    status = 400
    exit_code = 3
    kind = "invalid_request_error"


class Unauthorized(RondoError):
    """The request has no valid credentials."""

    status = 401
    kind = "authentication_error"


class Forbidden(RondoError):
    """The credentials are valid, but lack the permission."""

    status = 403
    kind = "permission_error"


class NotFound(RondoError):
    status = 404
    exit_code = 4
    kind = "invalid_request_error"


class Conflict(RondoError):
    status = 409
    exit_code = 5
    kind = "invalid_request_error"


class Overloaded(RondoError):
    status = 429
    kind = "rate_limit_error"


class Unavailable(RondoError):
    status = 503
    kind = "server_error"


class NotReady(Unavailable):
    """`after`: seconds until another try may succeed."""

    after = 1.0


class StorageError(RondoError):
    """A failed disk operation: full, read-only or without permission."""

    status = 507
    exit_code = 6
    kind = "server_error"


class MissingExtra(RondoError):
    """An optional package is missing: names the extra that installs it."""

    status = 501
    exit_code = 7

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Install it with: pip install 'rondo-lab[{extra}]'")
