"""The expressions behind llama.cpp's names of pre-tokenizers (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{_CASED}*{_LOWER}+|{_CASED}+{_LOWER}*|\p{{N}}|{_SLASHED}"
GPT4O = rf"{_CASED}*{_LOWER}+{_CONTRACTIONS}?|{_CASED}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASHED}"
DIGIT = r"\p{N}"
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", DIGIT)
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class PreTokenizer:
    """`patterns` split the text one after another."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """Whether a piece that is a token is never split."""
    nfc: bool = False
    adds_bos: bool = False
    """Whether texts start with the BOS token if the file does not specify it."""


_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, adds_bos=True)
_PLAIN_LLAMA3 = PreTokenizer((LLAMA3,))
_GPT2 = PreTokenizer((GPT2,))
_DIGITS = PreTokenizer((DIGIT, GPT2))
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "llama-bpe": _LLAMA3,
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    "dbrx": _PLAIN_LLAMA3,
    "smaug-bpe": _PLAIN_LLAMA3,
    "qwen2": PreTokenizer((QWEN2,), nfc=True),
    "stablelm2": PreTokenizer((QWEN2,)),
    "deepseek-r1-qwen": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "gpt-2": _GPT2,
    **dict.fromkeys(("phi-2", "mpt", "olmo", "jais", "mellum", "a.x-4.0"), _GPT2),
    "smollm": _DIGITS,
    **dict.fromkeys(("starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True),
    "gpt-4o": PreTokenizer((GPT4O,)),
    "llama4": PreTokenizer((GPT4O,)),
    "deepseek-coder": PreTokenizer(DEEPSEEK_CODER),
    "default": PreTokenizer(DEFAULT),
}
"""The first of several names for the same expressions is the one that is written."""


def name_of(patterns: tuple[str, ...], ignore_merges: bool) -> str | None:
    """llama.cpp's name of a pre-tokenizer; None if it has none."""
    same = [name for name, each in PRE_TOKENIZERS.items() if each.patterns == patterns]
    exact = [name for name in same if PRE_TOKENIZERS[name].ignore_merges == ignore_merges]
    return next(iter([*exact, *same]), None)


def spec_of(patterns: tuple[str, ...]) -> dict[str, Any]:
    """The `pre_tokenizer` of a tokenizer.json."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    flags = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*splits, {"type": "ByteLevel", **flags}]}


def patterns_of(spec: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """The expressions of a `pre_tokenizer` in tokenizer.json; None if it splits text in other ways too."""
    patterns: list[str] = []
    for step in _flat(spec):
        match step:
            case {
                "type": "Split",
                "pattern": {"Regex": str(pattern)},
                "behavior": behavior,
                "invert": invert,
            }:
                if (behavior, invert) not in (("Isolated", False), ("Removed", True)):
                    return None
                patterns.append(pattern)
            case {"type": "Digits", "individual_digits": True}:
                patterns.append(DIGIT)
            case {"type": "ByteLevel", "add_prefix_space": False}:
                patterns += [GPT2] if step.get("use_regex", True) else []
            case _:
                return None
    return tuple(patterns)


def _flat(spec: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if spec is None:
        return []
    if spec["type"] == "Sequence":
        return [step for inner in spec["pretokenizers"] for step in _flat(inner)]
    return [spec]
