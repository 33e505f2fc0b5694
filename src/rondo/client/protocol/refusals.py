"""Validation of a body into a request, or into an error with the invalid field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rondo.base.errors import InvalidRequest, RondoError
from rondo.client.protocol.wire import WireModel, shown

Body = TypeVar("Body", bound=WireModel)

KNOWN_UNSUPPORTED = frozenset(
    [
        "functions",
        "function_call",
        "audio",
        "prediction",
        "web_search_options",
        "moderation",
        "length_penalty",
    ]
)
"""Known fields of OpenAI's or vLLM's API without support here: reported as unsupported, not as a typo."""


SHAPES = {
    "prompt": "must be a text, a list of texts, a list of token ids, or a list of lists of token ids",
    "stop": "must be a text or a list of texts",
    "input": "must be a text, a list of texts, a list of token ids, or a list of lists of token ids",
    "messages": "must be a list of {role, content}, content a text or a list of text parts",
    "tools": 'must be a list of {"type": "function", "function": {"name", "description", "parameters"}}',
    "tool_choice": 'must be "none", "auto", "required", {"type": "function", "function": {"name"}} '
    'or {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}',
    "response_format": "must be {type: text | json_object}, {type: json_schema, json_schema: {name, schema, strict}}, "
    "{type: json | regex, value} or {type: structural_tag, structures, triggers}",
    "suffix": "is not supported",
    "store": "is not supported, except as false",
    "use_beam_search": "is not supported, except as false",
    "modalities": 'is supported as ["text"] alone',
    "verbosity": "must be low, medium or high (it has no effect here)",
    "service_tier": "must be auto, default, flex or priority",
    "prompt_cache_retention": "must be in_memory or 24h (it has no effect here)",
}
"""Replacements for pydantic's message if a field has several forms."""

MOST_ERRORS = 1000
"""Limit of errors per body: reading the first pydantic error builds all of them."""


def parse(kind: type[Body], raw: bytes) -> Body:
    """The checked request, or an `InvalidRequest` that names the field."""
    try:
        return kind.model_validate_json(raw, strict=True)
    except ValidationError as error:
        raise _explain(kind, error) from None


def checked(kind: type[Body], given: Mapping[str, Any]) -> Body:
    """`parse` for a body that is already decoded."""
    try:
        return kind.model_validate(given, strict=True)
    except ValidationError as error:
        raise _explain(kind, error) from None


def _explain(kind: type[WireModel], error: ValidationError) -> InvalidRequest:
    if error.error_count() > MOST_ERRORS:
        return InvalidRequest(
            f"{error.error_count()} fields are unknown or wrong: /openapi.json has those that there are.",
            code="invalid_value",
        )
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if not location:
        reason = first["msg"] if first["type"] == "json_invalid" else "the request body must be a JSON object"
        return InvalidRequest(f"{reason}.", code="invalid_json")
    name, where = location[0], ".".join(location)
    if first["type"] == "extra_forbidden":
        return _unknown(kind, location)
    if first["type"] == "missing" and len(location) == 1:
        return InvalidRequest(f"{where} is required.", param=name, code="missing_required_parameter")
    message = kind.shapes.get(name) or SHAPES.get(name, f"is wrong ({first['msg']})")
    return InvalidRequest(f"{name} {message}; got {shown(first['input'])}.", param=name, code="invalid_value")


def _unknown(kind: type[WireModel], location: list[str]) -> InvalidRequest:
    where = ".".join(location)
    if len(location) == 1 and where in KNOWN_UNSUPPORTED:
        return InvalidRequest(f"{where} is not supported.", param=where, code="unsupported_parameter")
    near = difflib.get_close_matches(location[-1], _fields_beside(kind, location), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return InvalidRequest(f"unknown field: {where}.{hint}", param=where, code="unknown_parameter")


def _fields_beside(kind: type[BaseModel], location: list[str]) -> list[str]:
    """Candidates for a misspelled last field. Indices, and pydantic's names for the forms of a field, lead to no
    field."""
    models = [kind]
    for step in location[:-1]:
        field = next((found for model in models if (found := _fields(model).get(step)) is not None), None)
        if field is not None:
            models = list(_models(field.annotation))
        else:
            models = [model for model in models if model.__name__ == step] or models
    return [name for model in models for name in _fields(model)]


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Of `Many[X] | Y | None`: X and Y."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


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
