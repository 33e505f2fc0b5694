"""Validation of the chat-template variables that a caller may set."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.text.tokenizer import Tokenizer

RESERVED = frozenset(
    name
    for method in (Tokenizer.render, Tokenizer.apply_chat)
    for name, parameter in inspect.signature(method).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
)
"""Names that `chat_template_kwargs` must not contain, because they are parameters of the tokenizer's methods."""


def template_variables(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """`chat_template_kwargs`; raises if they contain reserved names."""
    wrong = sorted(RESERVED & set(given or {}))
    if wrong:
        raise InvalidRequest(
            f"chat_template_kwargs must not hold {', '.join(wrong)}: only variables of the chat template's own.",
            param="chat_template_kwargs",
        )
    return given or {}
