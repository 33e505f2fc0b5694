"""Mixtures of sources: `web@0.7` is a source with a weight, its share of the tokens relative to the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rondo.base.errors import ConfigError


@dataclass(frozen=True)
class Weighted:
    source: str
    weight: float


def weighted(data: str | Sequence[str]) -> list[Weighted]:
    """Sources with weights. The text after the last @ is the weight, if it is a number; the default is 1."""
    return [_weighted(text) for text in ([data] if isinstance(data, str) else data)]


def _weighted(text: str) -> Weighted:
    source, mark, last = text.rpartition("@")
    try:
        weight = float(last) if mark else math.nan
    except ValueError:
        weight = math.nan
    if math.isnan(weight):
        return Weighted(text, 1.0)
    if not source or not 0 < weight < math.inf:
        raise ConfigError(f"{text!r}: a weight is a number above 0, as in web@0.7", param="train.data")
    return Weighted(source, weight)
