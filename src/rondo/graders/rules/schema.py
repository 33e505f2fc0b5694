"""Validation of a text against a JSON schema."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from rondo.base.errors import ConfigError

SHORT = 100_000
"""Maximum number of characters validated in this process; longer texts are validated in the pool."""


@lru_cache(64)
def validator(schema: str) -> Any:
    """Validator of a schema in JSON. Its patterns are matched in linear time, and references outside the schema are
    rejected."""
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            json.loads(schema), retriever=_nothing, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"json_schema is no JSON schema: {str(error)[:300]}.", param="json_schema"
        ) from None


def holds(schema: str, text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_no_constant)
        return bool(validator(schema).is_valid(value))
    except (ValueError, RecursionError, TypeError):  # not JSON, or nested too deeply
        return False


def _nothing(uri: str) -> Any:
    raise ValueError(f"{uri} is elsewhere: a schema must hold all it refers to")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
