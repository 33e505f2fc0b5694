"""Quantization of a checkpoint's weights: schemes by module, and checks of the fields of `quantization_config`. Imports
no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rondo.base.errors import ModelError

FIELD = "quantization_config"
Settings = Mapping[str, Any]
Format = Literal["gptq", "awq", "packed", "int8", "fp8", "block_fp8", "mxfp4", "nf4", "q8_0", "q4_0"]
ANY = ".*"
NF4_GROUP = 64


@dataclass(frozen=True)
class Scheme:
    """Storage format of one weight."""

    format: Format
    bits: int
    group: int | None = None
    """Columns that share a scale; None if a whole row does."""
    symmetric: bool = True
    per_row: bool = True
    """For 8 bits without groups: whether each row has a scale, or the whole weight one."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale."""
    ordered: bool = False
    """Whether the columns of a group may be at any position (GPTQ's act-order)."""
    zero_offset: int = 0
    """Number subtracted from the stored zeros: 1 in GPTQ's first format."""
    activations: Literal["float", "int8"] = "float"
    nested: bool = False
    """nf4: whether the scales are stored in 8 bits."""


@dataclass(frozen=True)
class SchemeRule:
    """The scheme, or None for plain weights, of modules whose names match one of the patterns."""

    patterns: tuple[str, ...]
    scheme: Scheme | None


@dataclass(frozen=True)
class Quantization:
    method: str
    rules: tuple[SchemeRule, ...]
    """The first matching rule applies; a module without a match is not quantized."""

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a module by its Hugging Face name."""
        for rule in self.rules:
            if any(re.search(pattern, module) for pattern in rule.patterns):
                return rule.scheme
        return None


def unsupported(field: str, value: object, supported: Iterable[object]) -> ModelError:
    known = ", ".join(str(each) for each in supported)
    return ModelError(
        f"config.json: {FIELD}.{field} is {value!r}, which is not supported; supported: {known}",
        param=f"{FIELD}.{field}",
    )


def check(settings: Settings, field: str, supported: Iterable[object], default: object = None) -> Any:
    """The value of a field; raises unless it is one of `supported`."""
    value, known = settings.get(field, default), list(supported)
    if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in known):
        raise unsupported(field, value, known)
    return value


def group_size(settings: Settings, field: str = "group_size") -> int | None:
    """The group size; None for a whole row, which configs write as -1."""
    size = settings.get(field)
    if size in (-1, None):
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ModelError(
            f"config.json: {FIELD}.{field} is {size!r}, not a number of columns (or -1: a whole row)",
            param=f"{FIELD}.{field}",
        )
    return size


def names(settings: Settings, field: str) -> list[str]:
    found = settings.get(field) or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ModelError(
            f"config.json: {FIELD}.{field} is not a list of module names", param=f"{FIELD}.{field}"
        )
    return found


def pattern(text: str, field: str) -> str:
    """A regular expression of the file, anchored at the start of a name."""
    try:
        re.compile(text)
    except re.error as error:
        raise ModelError(
            f"config.json: {FIELD}.{field} has {text!r}, which is no regular expression: {error}",
            param=f"{FIELD}.{field}",
        ) from error
    return f"^(?:{text})"


def block_of(block: Any, field: str) -> tuple[int, int]:
    if (
        not isinstance(block, list | tuple)
        or len(block) != 2
        or not all(type(n) is int and n > 0 for n in block)
    ):
        raise ModelError(
            f"config.json: {FIELD}.{field} is {block!r}, not [rows, columns]", param=f"{FIELD}.{field}"
        )
    return block[0], block[1]


COUNTED = {
    ".qweight": 8,
    ".weight_packed": 8,
    "_blocks": 2,
    **dict.fromkeys((".qzeros", ".scales", ".g_idx", "_scales", ".weight_g_idx", ".weight_shape"), 0),
    **dict.fromkeys((".weight_scale", ".weight_scale_inv", ".weight_zero_point", ".input_scale"), 0),
    **dict.fromkeys((".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", "__nf4"), 0),
}


def numbers_of(name: str, shape: tuple[int, ...]) -> int:
    """The number of model parameters that a stored tensor represents."""
    factor = next((factor for end, factor in COUNTED.items() if name.endswith(end)), 1)
    if name.endswith(".weight") and len(shape) == 2 and shape[1] == 1:  # bitsandbytes
        factor = 2
    return factor * math.prod(shape)
