"""Types of the flags of `rondo bench`, each with an error in words."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rondo.base.errors import ConfigError
from rondo.base.storage.paths import path_of
from rondo.base.units import parse_count

Number = TypeVar("Number", int, float)


def _number(kind: Callable[[str], Number], text: str, fits: Callable[[Number], bool], what: str) -> Number:
    try:
        number = kind(text)
        good = fits(number)
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not {what}")
    return number


def positive(text: str) -> int:
    return _number(parse_count, text, lambda number: number >= 1, "a whole number of at least 1")


def natural(text: str) -> int:
    return _number(parse_count, text, lambda number: number >= 0, "a whole number of at least 0")


def whole(text: str) -> int:
    return _number(int, text, lambda number: True, "a whole number")


def seconds(text: str) -> float:
    return _number(float, text, lambda number: 0 <= number < float("inf"), "a number of seconds")


def rate(text: str) -> float:
    return _number(float, text, lambda number: number > 0, "a number above 0")


def rates(text: str) -> list[float]:
    return [rate(part) for part in text.split(",")]


def share(text: str) -> float:
    return _number(float, text, lambda number: 0 <= number < 1, "a number from 0 to below 1")


def percentiles(text: str) -> list[float]:
    what = "a number between 0 and 100"
    return [_number(float, part, lambda number: 0 <= number <= 100, what) for part in text.split(",")]


def metrics(text: str) -> list[str]:
    from rondo.client.bench.figures import METRICS

    names = text.split(",")
    for name in names:
        if name not in METRICS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(METRICS)}")
    return names


def limit(text: str) -> tuple[str, float]:
    from rondo.client.bench.figures import LIMITED

    name, _, most = text.partition(":")
    if name not in LIMITED:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:MILLISECONDS with one of {', '.join(LIMITED)}"
        )
    return name, rate(most)


def json_object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--extra-body is not valid JSON: {error}.", param="extra_body") from None
    if not isinstance(given, dict):
        raise ConfigError("--extra-body must be a JSON object.", param="extra_body")
    return given


def output(text: str) -> Path:
    """A file that can be written, as far as can be seen before there is something to write."""
    path = path_of(text, "FILE").absolute()
    if not _can_be_written(path):
        raise argparse.ArgumentTypeError(f"no file can be written at {text}")
    return path


def _can_be_written(path: Path) -> bool:
    if os.path.exists(path):
        return not os.path.isdir(path) and os.access(path, os.W_OK)
    # Unlike a path's own methods, these take what may not be looked into for what is not there.
    folder = next((above for above in path.parents if os.path.exists(above)), path)
    return os.path.isdir(folder) and os.access(folder, os.W_OK)
