"""Training a byte-level BPE tokenizer from text."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from rondo.base.errors import ConfigError
from rondo.text.conversation.templates import CHATML, CHATML_TOKENS
from rondo.text.folder import TokenizerFolder
from rondo.text.tokenizer import Tokenizer

# Words with their leading space, contractions, single digits, runs of punctuation, newlines.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = 256


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = CHATML_TOKENS,
    chat_template: str | None = None,
    *,
    eos_token: str | None = None,
    pad_token: str | None = None,
    bos_token: str | None = None,
) -> Tokenizer:
    """Trains a tokenizer, deterministically for the same texts in the same order.

    By default `eos_token` is the last special token and `pad_token` the first. With the default special tokens a turn
    ends with `<|im_end|>`, a document with `<|endoftext|>`, and both end a generation. With few texts the vocabulary is
    smaller than `vocab_size`.
    """
    if not special_tokens:
        raise ConfigError("special_tokens is empty: at least one token must end a text.")
    if vocab_size < _BYTES + len(special_tokens):
        raise ConfigError(
            f"vocab_size {vocab_size} is too small: the bytes and special tokens alone need "
            f"{_BYTES + len(special_tokens)}."
        )
    named = {
        "eos_token": eos_token or special_tokens[-1],
        "pad_token": pad_token or special_tokens[0],
        "bos_token": bos_token,
    }
    if missing := [token for token in named.values() if token is not None and token not in special_tokens]:
        raise ConfigError(f"{missing[0]!r} is not among special_tokens {list(special_tokens)}.")
    backend = _train(texts, vocab_size, special_tokens)
    return _package(backend, {name: token for name, token in named.items() if token}, chat_template or CHATML)


def _train(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    return backend


def _package(backend: tokenizers.Tokenizer, named: dict[str, str], chat_template: str) -> Tokenizer:
    ids = {name: backend.token_to_id(token) for name, token in named.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    generation = {
        "eos_token_id": list(dict.fromkeys([ids["eos_token"], ids["pad_token"]])),
        "pad_token_id": ids["pad_token"],
    }
    if "bos_token" in ids:
        generation["bos_token_id"] = ids["bos_token"]
    files = {
        "tokenizer.json": backend.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
        "chat_template.jinja": chat_template.encode(),
        "generation_config.json": json.dumps(generation, indent=2).encode(),
    }
    return Tokenizer.from_files(TokenizerFolder(Path("a new tokenizer"), files))
