"""A tokenizer's decoder as data, parsed once, for decoding token by token.

Language models have two kinds. Byte-level: every character of a token represents a byte, and the text is the bytes of
all tokens. SentencePiece-like: a token is text in which a mark represents a space, except tokens such as `<0xE4>`,
which are single bytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>", re.ASCII)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's reversible alphabet: printable bytes map to themselves, the others to code points above 255."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_ALPHABET = _byte_alphabet()


def alphabet_bytes(token: str) -> bytes:
    """The bytes of a byte-level token. A token outside the alphabet (an added token) maps to its own text."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()


@dataclass(frozen=True)
class Replace:
    old: str
    new: str
    drop_at_start: bool = False
    """Whether `old` is removed from the first token, like SentencePiece's leading mark."""

    def apply(self, text: str, first: bool) -> str:
        return text.replace(self.old, "" if first and self.drop_at_start else self.new)


@dataclass(frozen=True)
class Decoding:
    byte_level: bool = False
    before: tuple[Replace, ...] = ()
    byte_fallback: bool = False
    after: tuple[Replace, ...] = ()
    strip: tuple[str, int] = ("", 0)
    """A character, and the number of them removed from the start of the text."""
    separator: str = ""

    def piece(self, token: str, first: bool) -> str | int:
        """The text of a token, or its byte (SentencePiece-like kinds only)."""
        for replace in self.before:
            token = replace.apply(token, first)
        if self.byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return int(token[3:5], 16)
        return self.finish(token, first)

    def finish(self, text: str, first: bool) -> str:
        for replace in self.after:
            text = replace.apply(text, first)
        return text if first else self.separator + text

    def token_bytes(self, token: str) -> bytes:
        if self.byte_level:
            return alphabet_bytes(token)
        piece = self.piece(token, first=False)
        return bytes([piece]) if isinstance(piece, int) else piece.encode()


def parse_decoder(spec: Mapping[str, Any] | None, where: str) -> Decoding:
    """`spec` is the `decoder` of a tokenizer.json."""
    if spec is None:
        return Decoding(separator=" ")
    steps = _flatten(spec)
    if [step["type"] for step in steps if step["type"] != "Fuse"] == ["ByteLevel"]:
        return Decoding(byte_level=True)
    before: list[Replace] = []
    after: list[Replace] = []
    fallback = fused = False
    strip = ("", 0)
    for step in steps:
        replace = _replace(step)
        if replace is not None and not fused:
            (after if fallback else before).append(replace)
        elif step["type"] == "ByteFallback" and not fallback and not fused:
            fallback = True
        elif step["type"] == "Fuse":
            fused = True
        elif step["type"] == "Strip" and fused and not step["stop"] and not strip[1]:
            strip = (step["content"], step["start"])
        else:
            chain = " -> ".join(step["type"] for step in steps)
            raise ModelError(
                f"{where}: its decoder ({chain}) cannot be followed token by token. Known are ByteLevel, and "
                "Replace, Metaspace, ByteFallback, Fuse and a leading Strip in that order."
            )
    return Decoding(before=tuple(before), byte_fallback=fallback, after=tuple(after), strip=strip)


def _flatten(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if spec["type"] == "Sequence":
        return [step for inner in spec["decoders"] for step in _flatten(inner)]
    return [spec]


def _replace(step: Mapping[str, Any]) -> Replace | None:
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return Replace(step["pattern"]["String"], step["content"])
    if step["type"] == "Metaspace":
        return Replace(step["replacement"], " ", drop_at_start=step.get("prepend_scheme") != "never")
    return None
