"""Hashes of the prefixes of a request's prompt, for prefix affinity.

The gateway and the engine server compute them from the same bytes: those of the prompt in the JSON body. A prompt is
cut into pieces of equal size. The hash of a piece covers everything before it, so that one hash identifies one prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
import xxhash

ABSENT = msgspec.Raw(b"")
SEVERAL = re.compile(rb'\s*\[\s*["\[]')
"""Beginning of a list of prompts."""


class PromptBody(msgspec.Struct):
    """Fields of a body that determine its prompt. Values are not decoded: a conversation of 100,000 characters costs a
    few microseconds."""

    model: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT

    @property
    def root(self) -> bytes:
        """Prompts of different roots share no cache entries: those of different models, adapters and salts."""
        return bytes(self.model) + bytes(self.cache_salt)

    @property
    def text(self) -> bytes:
        """The prompt as it was sent, in JSON: conversations with equal prefixes have equal first bytes. Tools are
        first, as in most chat templates."""
        parts = (self.tools, self.instructions, self.messages, self.prompt, self.input)
        return b"".join([given for part in parts if (given := bytes(part))])  # a single part is not copied


@dataclass(frozen=True)
class PromptPieces:
    """Prefixes of one prompt of `size` bytes: hash i covers its first `(i + 1) * piece` bytes."""

    hashes: list[int]
    piece: int
    size: int


_decoder = msgspec.json.Decoder(PromptBody)


def hashes(root: bytes, text: bytes, piece: int, longest: int) -> list[int]:
    """Hashes of the text's whole pieces of `piece` bytes, at most `longest` of them."""
    state = xxhash.xxh3_64(root)
    update, digest = state.update, state.intdigest
    view, found = memoryview(text), []
    for start in range(0, min(len(text), piece * longest) - piece + 1, piece):
        update(view[start : start + piece])
        found.append(digest())
    return found


def pieces_of(body: bytes, piece: int, longest: int) -> PromptPieces | None:
    """Prefixes of the prompt in a valid body; None if it has several prompts or is shorter than a piece."""
    read = _decoder.decode(body)
    if any(SEVERAL.match(bytes(given)) for given in (read.prompt, read.input)):
        return None
    text = read.text
    found = hashes(read.root, text, piece, longest)
    return PromptPieces(found, piece, len(text)) if found else None
