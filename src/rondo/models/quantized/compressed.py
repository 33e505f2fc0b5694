"""The `quantization_config` of compressed-tensors (llm-compressor's models, and many on the Hub). Imports no torch."""

from __future__ import annotations

import re
from typing import Any

from rondo.base.errors import ModelError
from rondo.models.quantized.scheme import (
    ANY,
    FIELD,
    Scheme,
    SchemeRule,
    Settings,
    block_of,
    check,
    group_size,
    names,
    pattern,
    unsupported,
)

FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
"""Formats with one number an element, as opposed to several in each int32."""


def rules(settings: Settings) -> tuple[SchemeRule, ...]:
    check(settings, "quantization_status", [None, "compressed", "frozen"])
    for absent in ("sparsity_config", "transform_config"):
        if _matters(settings.get(absent)):
            raise unsupported(absent, settings[absent], ["none"])
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ModelError(f"config.json: {FIELD}.config_groups is missing", param=f"{FIELD}.config_groups")
    ignored = tuple(_named(name, "ignore") for name in names(settings, "ignore"))
    named: list[SchemeRule] = []
    by_class: list[SchemeRule] = []
    for name, group in groups.items():
        field = f"config_groups.{name}"
        if not isinstance(group, dict):
            raise unsupported(field, group, ["an object"])
        scheme = _scheme(group, group.get("format") or settings.get("format"), field)
        targets = names(group, "targets")
        classes = [target for target in targets if target == "Linear"]
        others = tuple(_named(target, f"{field}.targets") for target in targets if target != "Linear")
        named.append(SchemeRule(others, scheme))
        by_class += [SchemeRule((ANY,), scheme)] if classes else []
    return (SchemeRule(ignored, None), *named, *by_class)


def _matters(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is not None
    return value.get("format", "dense") != "dense" or bool(value.get("config_groups"))


def _named(target: str, field: str) -> str:
    return pattern(target[3:], field) if target.startswith("re:") else f"^{re.escape(target)}$"


def _scheme(group: Settings, form: Any, field: str) -> Scheme:
    if form not in FORMATS:
        raise unsupported("format", form, FORMATS)
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise unsupported(f"{field}.weights", weights, ["an object"])
    if group.get("output_activations") is not None:
        raise unsupported(f"{field}.output_activations", group["output_activations"], [None])
    of = f"{field}.weights"
    kind, bits = weights.get("type", "int"), weights.get("num_bits")
    known = {"pack-quantized": [("int", 4), ("int", 8)]}.get(form, [("int", 8), ("float", 8)])
    if (kind, bits) not in known:
        said = f"{bits} bits of {kind} in {form}"
        raise unsupported(of, said, [f"{number} bits of {name}" for name, number in known])
    symmetric = bool(weights.get("symmetric", True))
    if not symmetric and bits != 4:
        raise unsupported(f"{of}.symmetric", False, [True])
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if form == "pack-quantized":
        return _packed(weights, strategy, int(bits or 0), symmetric, of)
    allowed = ("tensor", "channel", "group", *(("block",) if kind == "float" else ()))
    if strategy not in allowed:
        raise unsupported(f"{of}.strategy", strategy, allowed)
    if strategy == "block":
        return Scheme("fp8", 8, block=block_of(weights.get("block_structure"), f"{of}.block_structure"))
    size = group_size(weights) if strategy == "group" else None
    activations: Any = "int8" if kind == "int" and _rounded(group, field) else "float"
    if activations == "int8" and size is not None:
        raise unsupported(f"{of}.strategy", "group beside int8 activations", ["tensor", "channel"])
    return Scheme(
        "int8" if kind == "int" else "fp8", 8, size, per_row=strategy != "tensor", activations=activations
    )


def _packed(weights: Settings, strategy: str, bits: int, symmetric: bool, of: str) -> Scheme:
    if strategy not in ("channel", "group"):
        raise unsupported(f"{of}.strategy", strategy, ("channel", "group"))
    order = weights.get("actorder")
    if order not in (None, False, True, "group", "weight", "static", "dynamic"):
        raise unsupported(f"{of}.actorder", order, (None, "group", "weight"))
    ordered = order in (True, "group", "dynamic")
    if ordered and bits == 8:
        raise unsupported(f"{of}.actorder", order, (None, "weight"))
    size = group_size(weights) if strategy == "group" else None
    return Scheme("packed", bits, size, symmetric, ordered=ordered)


def _rounded(group: Settings, field: str) -> bool:
    """Whether activations are quantized to int8, dynamically by token; otherwise they stay floating-point."""
    activations = group.get("input_activations")
    if activations is None:
        return False
    of = f"{field}.input_activations"
    if not isinstance(activations, dict):
        raise unsupported(of, activations, ["an object", None])
    found = tuple(activations.get(key, default) for key, default in ROUNDED.items())
    if found != (8, "int", True, "token", True):
        raise unsupported(of, dict(zip(ROUNDED, found)), ["8 bits of int, symmetric, dynamic, by token"])
    return True


ROUNDED = {"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor", "symmetric": True}
