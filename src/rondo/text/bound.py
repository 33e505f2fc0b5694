"""Maximum length of a text that fits into a number of tokens, to refuse a huge prompt without tokenizing it."""

import json
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from rondo.text.tokenizer import Tokenizer

# A composed character corresponds to at most four code points.
_COMPOSED = 4
_KEEPING = ("ByteLevel", "Metaspace", "Digits")


def longest_text(tokenizer: Tokenizer, tokens: int) -> int | None:
    """Maximum characters of a text that encodes to at most `tokens` tokens. None if the tokenizer may drop text or join
    any amount of it into one token, so that there is no bound."""
    backend = tokenizer._backend
    shrinks = _normalizer_shrinks(_spec(backend.normalizer))
    if shrinks is None or not _keeps_all(backend):
        return None
    # A token's name has at least as many characters as its text.
    return tokens * shrinks * max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)


def _spec(part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    spec: dict[str, Any] = json.loads(part.__getstate__())
    return spec


def _normalizer_shrinks(spec: dict[str, Any] | None) -> int | None:
    """Maximum number of characters that normalization merges into one; None if unknown."""
    match spec:
        case None | {"type": "Prepend"}:
            return 1
        case {"type": "NFC"}:
            return _COMPOSED
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if len(old) <= len(
            new
        ):
            return 1
        case {"type": "Sequence", "normalizers": [*parts]}:
            factor = 1
            for part in parts:
                inner = _normalizer_shrinks(part)
                if inner is None:
                    return None
                factor *= inner
            return factor
    return None


def _keeps_all(backend: tokenizers.Tokenizer) -> bool:
    """Whether every character is part of some token, and an unknown one of a token of its own."""
    model = backend.model
    added = backend.get_added_tokens_decoder().values()
    if not isinstance(model, models.BPE) or any(token.lstrip or token.rstrip for token in added):
        return False
    splits = _splits(_spec(backend.pre_tokenizer))
    if not all(
        part["type"] in _KEEPING or (part["type"] == "Split" and part["behavior"] != "Removed")
        for part in splits
    ):
        return False
    if any(part["type"] == "ByteLevel" for part in splits):
        needed = pre_tokenizers.ByteLevel.alphabet()
    elif model.byte_fallback:
        needed = [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        return False
    return all(model.token_to_id(token) is not None for token in needed)


def _splits(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    if spec is None:
        return []
    if spec["type"] == "Sequence":
        return [inner for part in spec["pretokenizers"] for inner in _splits(part)]
    return [spec]
