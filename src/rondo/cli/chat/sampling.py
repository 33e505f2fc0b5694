"""Sampling settings of `/set` and of the flags of `rondo run`, under the names of the API."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rondo.base.errors import ConfigError

SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "temperature": (float, "0 is greedy"),
    "top_p": (float, "likeliest tokens with this total probability"),
    "top_k": (int, "number of likeliest tokens"),
    "min_p": (float, "least probability, relative to the likeliest token"),
    "max_tokens": (int, "longest answer"),
    "seed": (int, "the same seed samples the same answer"),
    "stop": (str, "text that ends an answer"),
    "presence_penalty": (float, "of tokens that the answer has"),
    "frequency_penalty": (float, "of tokens, by their count in the answer"),
    "repetition_penalty": (float, "of tokens in prompt and answer; 1 is none"),
    "top_logprobs": (int, "alternatives that /logprobs shows"),
}


def read_setting(name: str, text: str) -> Any:
    """The value of a setting; an error names the setting or its type."""
    name = name.replace("-", "_")
    if name not in SETTINGS:
        import difflib

        close = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f" Did you mean {close[0]}?" if close else f" There are: {', '.join(SETTINGS)}."
        raise ConfigError(f"Unknown setting {name}.{hint}", param=name)
    kind = SETTINGS[name][0]
    try:
        return kind(text)
    except ValueError:
        expected = "an integer" if kind is int else "a number"
        raise ConfigError(f"{name} must be {expected}, not {text!r}.", param=name) from None


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for name, (kind, text) in SETTINGS.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar=_metavar(kind), help=text)


def sampling_of(given: argparse.Namespace) -> dict[str, Any]:
    """The flags that were set."""
    return {name: value for name in SETTINGS if (value := getattr(given, name, None)) is not None}


def _metavar(kind: object) -> str:
    return {int: "N", float: "X"}.get(kind, "TEXT")  # type: ignore[call-overload,no-any-return]
