"""Quantization of a checkpoint's weights, from `quantization_config` in its config.json. Imports no torch."""

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


def _bitsandbytes(settings: Settings) -> tuple[SchemeRule, ...]:
    """4-bit weights of bitsandbytes in NF4."""
    check(settings, "load_in_4bit", [True])
    check(settings, "bnb_4bit_quant_type", ["nf4"], "fp4")
    check(settings, "bnb_4bit_quant_storage", ["uint8"], "uint8")
    kept = tuple(map(_within, names(settings, "llm_int8_skip_modules")))
    nested = bool(settings.get("bnb_4bit_use_double_quant", False))
    return HEAD, SchemeRule(kept, None), SchemeRule((ANY,), Scheme("nf4", 4, NF4_GROUP, nested=nested))


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


def _mxfp4(settings: Settings) -> tuple[SchemeRule, ...]:
    """The released gpt-oss: only its experts are quantized."""
    kept = tuple(map(_within, names(settings, "modules_to_not_convert")))
    experts = r"\.experts\.(gate_up_proj|down_proj)$"
    return SchemeRule(kept, None), SchemeRule((experts,), Scheme("mxfp4", 4, group=32))


def _gguf(settings: Settings) -> tuple[SchemeRule, ...]:
    """Weights of a GGUF file that stay quantized: their modules by type, with `*` for all experts."""
    schemes = {"Q8_0": Scheme("q8_0", 8, group=32), "Q4_0": Scheme("q4_0", 4, group=32)}
    rules = []
    for name, scheme in schemes.items():
        modules = "|".join(re.escape(module) for module in names(settings, name)).replace(r"\*", r"\d+")
        rules += [SchemeRule((f"^(?:{modules})$",), scheme)] if modules else []
    return tuple(rules)


def _compressed(settings: Settings) -> tuple[SchemeRule, ...]:
    from rondo.models.quantized.compressed import rules

    return rules(settings)


READERS = {
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "gguf": _gguf,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}

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
