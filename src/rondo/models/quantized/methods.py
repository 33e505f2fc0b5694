"""Quantization schemes by `quant_method`, from `quantization_config` in a config.json. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rondo.models.quantized import compressed
from rondo.models.quantized.scheme import (
    ANY,
    FIELD,
    NF4_GROUP,
    Quantization,
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


def parse(hf: Mapping[str, Any]) -> Quantization | None:
    """None if the weights are not quantized."""
    settings = hf.get(FIELD)
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    reader = READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        said = method if isinstance(settings, dict) else settings
        raise unsupported("quant_method", said, READERS)
    return Quantization(str(method), reader(settings))


def _within(name: str) -> str:
    """A pattern for the module of that name, modules inside it, and modules whose names end in it."""
    return rf"(^|\.){re.escape(name).replace(re.escape('*'), '[^.]*')}(\.|$)"


HEAD = SchemeRule((r"^lm_head$",), None)


def _gptq(settings: Settings) -> tuple[SchemeRule, ...]:
    check(settings, "bits", [4])
    v2 = check(settings, "checkpoint_format", ["gptq", "gptq_v2"], "gptq") == "gptq_v2"
    if settings.get("is_marlin_format"):
        raise unsupported("is_marlin_format", True, [False])
    common = Scheme(
        "gptq",
        4,
        group_size(settings),
        symmetric=bool(settings.get("sym", True)),
        ordered=bool(settings.get("desc_act", False)),
        zero_offset=0 if v2 else 1,
    )
    rules = list(_dynamic(settings, common))
    if not settings.get("lm_head"):
        rules.append(HEAD)
    within = tuple(map(_within, _chosen(settings))) or (ANY,)
    return (*rules, SchemeRule(within, common))


def _chosen(settings: Settings) -> list[str]:
    """Names of the quantized modules of a block, flattened from lists of modules quantized together."""
    field = "modules_in_block_to_quantize"
    parts = settings.get(field) or []
    if not isinstance(parts, list):
        raise unsupported(field, parts, ["a list of module names, or of lists of them"])
    flat = [name for part in parts for name in (part if isinstance(part, list) else [part])]
    return names({field: flat}, field)


def _dynamic(settings: Settings, common: Scheme) -> Iterable[SchemeRule]:
    """Rules of GPTQModel's `dynamic`: a pattern after `-:` excludes modules, other patterns override settings."""
    chosen = settings.get("dynamic") or {}
    if not isinstance(chosen, dict) or not all(isinstance(own, dict) for own in chosen.values()):
        raise unsupported("dynamic", chosen, ["an object of patterns, each with an object of settings"])
    for text, own in chosen.items():
        sign, _, rest = text.partition(":") if text[:2] in ("-:", "+:") else ("+", "", text)
        if sign == "-":
            yield SchemeRule((pattern(rest, "dynamic"),), None)
            continue
        check(own, "bits", [4], 4)
        group = group_size(own) if "group_size" in own else common.group
        yield SchemeRule((pattern(rest, "dynamic"),), Scheme(**{**vars(common), "group": group}))


def _awq(settings: Settings) -> tuple[SchemeRule, ...]:
    check(settings, "bits", [4])
    check({"version": str(settings.get("version", "gemm")).lower()}, "version", ["gemm"])
    check(settings, "zero_point", [True], True)
    kept = tuple(re.escape(name) for name in names(settings, "modules_to_not_convert"))
    scheme = Scheme("awq", 4, group_size(settings), symmetric=False)
    return HEAD, SchemeRule(kept, None), SchemeRule((ANY,), scheme)


def _fp8(settings: Settings) -> tuple[SchemeRule, ...]:
    check(settings, "fmt", ["e4m3"], "e4m3")
    check(settings, "activation_scheme", ["dynamic", "static"], "dynamic")
    kept = [*names(settings, "modules_to_not_convert"), *names(settings, "ignored_layers")]
    block = settings.get("weight_block_size")
    if block is None:
        scheme = Scheme("fp8", 8, per_row=False)
    else:
        scheme = Scheme("block_fp8", 8, block=block_of(block, "weight_block_size"))
    return HEAD, SchemeRule(tuple(map(_within, kept)), None), SchemeRule((ANY,), scheme)


def _mxfp4(settings: Settings) -> tuple[SchemeRule, ...]:
    """The released gpt-oss: only its experts are quantized."""
    kept = tuple(map(_within, names(settings, "modules_to_not_convert")))
    experts = r"\.experts\.(gate_up_proj|down_proj)$"
    return SchemeRule(kept, None), SchemeRule((experts,), Scheme("mxfp4", 4, group=32))


def _bitsandbytes(settings: Settings) -> tuple[SchemeRule, ...]:
    """4-bit weights of bitsandbytes in NF4."""
    check(settings, "load_in_4bit", [True])
    check(settings, "bnb_4bit_quant_type", ["nf4"], "fp4")
    check(settings, "bnb_4bit_quant_storage", ["uint8"], "uint8")
    kept = tuple(map(_within, names(settings, "llm_int8_skip_modules")))
    nested = bool(settings.get("bnb_4bit_use_double_quant", False))
    return HEAD, SchemeRule(kept, None), SchemeRule((ANY,), Scheme("nf4", 4, NF4_GROUP, nested=nested))


def _gguf(settings: Settings) -> tuple[SchemeRule, ...]:
    """Weights of a GGUF file that stay quantized: their modules by type, with `*` for all experts."""
    schemes = {"Q8_0": Scheme("q8_0", 8, group=32), "Q4_0": Scheme("q4_0", 4, group=32)}
    rules = []
    for name, scheme in schemes.items():
        modules = "|".join(re.escape(module) for module in names(settings, name)).replace(r"\*", r"\d+")
        rules += [SchemeRule((f"^(?:{modules})$",), scheme)] if modules else []
    return tuple(rules)


READERS = {
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": compressed.rules,
    "fp8": _fp8,
    "gguf": _gguf,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
