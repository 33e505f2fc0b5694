"""Errors of a request name the field that the client sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from rondo.base.errors import InvalidRequest, RondoError


@contextmanager
def renaming(
    names: Mapping[str | None, str], kinds: tuple[type[RondoError], ...] = (InvalidRequest,)
) -> Iterator[None]:
    """Renames fields in errors of code that has other names for them than the request. Replaces the field's name at the
    start of a message; the rest of the message is unchanged."""
    try:
        yield
    except kinds as error:
        param = error.param and error.param.partition(".")[0]
        if param not in names:
            raise
        raise renamed(error, param, names[param]) from error


def renamed(error: RondoError, param: str | None, name: str) -> RondoError:
    """The error of the field `param`, renamed to `name`. A copy: other requests may wait for the same result and
    receive the same exception."""
    message = error.message
    if param is not None:
        message = re.sub(rf"^{re.escape(param)}\b", lambda _: name, message)
        if error.code == "context_length_exceeded":
            message = re.sub(
                rf"\b(your|the) {re.escape(param)}\b", lambda found: f"{found[1]} {name}", message
            )
    return type(error)(message, param=name, code=error.code)


def blaming(field: str) -> AbstractContextManager[None]:
    """Attributes errors of a prompt to this field of the request."""
    return renaming({None: field, "prompt": field})
