"""Special tokens, chat templates and stop ids, from the several files that may contain them.

The order of precedence is the same as in transformers' fast tokenizers.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken

from rondo.base.errors import ModelError
from rondo.text.folder import TEMPLATE_DIR, TokenizerFolder

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")

Key = TypeVar("Key")


def add_special_tokens(backend: tokenizers.Tokenizer, folder: TokenizerFolder) -> dict[str, str]:
    """Adds the tokens that only the configuration lists; returns name -> text of the named ones."""
    config = folder.json("tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= folder.json("special_tokens_map.json")
    if backend.padding is not None:
        config.setdefault("pad_token", backend.padding["pad_token"])
    listed = _listed(config, folder)
    by_text = {token.content: token for token in listed}
    names = [*NAMED, *(key for key in config if key.endswith("_token") and key not in NAMED)]
    named = _tokens({name: config.get(name) for name in names}, by_text)
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if not isinstance(extra, dict | list):
        raise _malformed(
            folder, "extra_special_tokens", f"a list of tokens or a mapping is due, not {extra!r}"
        )
    if isinstance(extra, dict):
        named |= _tokens(extra, by_text)
        extra = []
    _add(backend, listed, named, _tokens(dict(enumerate(extra)), by_text).values())
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return {name: token.content for name, token in named.items()}


def _listed(config: Mapping[str, Any], folder: TokenizerFolder) -> list[AddedToken]:
    """Added tokens with explicit ids in the configuration, in the order of the ids."""
    try:
        decoder = config["added_tokens_decoder"] if "added_tokens_decoder" in config else _old(config, folder)
        return [AddedToken(**decoder[index]) for index in sorted(decoder, key=int)]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        if "added_tokens_decoder" in config:
            raise _malformed(folder, "added_tokens_decoder", str(error)) from error
        file = folder.path / "added_tokens.json"
        raise ModelError(f"{file} is malformed ({error}). Download the file again.") from error


def _old(config: Mapping[str, Any], folder: TokenizerFolder) -> dict[int, dict[str, Any]]:
    """Added tokens from a file older than tokenizer.json, where all but the named tokens are plain."""
    special = {_text(config.get(name)) for name in NAMED}
    return {
        index: {"content": text, "normalized": text not in special, "special": text in special}
        for text, index in folder.json("added_tokens.json").items()
    }


def _malformed(folder: TokenizerFolder, field: str, why: str) -> ModelError:
    file = folder.path / "tokenizer_config.json"
    return ModelError(f"{file}: {field} is malformed ({why}). Download the file again.", param=field)


def _add(
    backend: tokenizers.Tokenizer,
    listed: Iterable[AddedToken],
    named: Mapping[str, AddedToken],
    extra: Iterable[AddedToken],
) -> None:
    present = backend.get_added_tokens_decoder().values()
    identical = {repr(token) for token in present}
    new = [token for token in listed if repr(token) not in identical]
    texts = {token.content for token in present} | {token.content for token in new}
    for token in (*named.values(), *extra):
        if token.content not in texts:
            texts.add(token.content)
            new.append(token)
    special = {token.content for token in named.values()}
    for token in new:
        token.special = token.special or token.content in special
    backend.add_tokens(new)


def _text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _tokens(values: Mapping[Key, Any], by_text: Mapping[str, AddedToken]) -> dict[Key, AddedToken]:
    """Converts strings and serialized tokens to tokens; other values of keys that end in `_token` are skipped."""
    texts = {key: text for key, value in values.items() if (text := _text(value)) is not None}
    return {key: by_text.get(text) or _special(text, values[key]) for key, text in texts.items()}


def _special(text: str, value: Any) -> AddedToken:
    flags = value if isinstance(value, dict) else {}
    known = {key: bool(flags[key]) for key in _FLAGS if key in flags}
    return AddedToken(text, special=True, **known)


def chat_templates(folder: TokenizerFolder) -> dict[str, str]:
    """Name -> template. Template files take precedence over the entry in tokenizer_config.json."""
    templates: dict[str, str] = {}
    for file, data in folder.files.items():
        if file == "chat_template.jinja":
            templates["default"] = _utf8(data, folder, file)
        elif file.startswith(f"{TEMPLATE_DIR}/"):
            name = file.removeprefix(f"{TEMPLATE_DIR}/").removesuffix(".jinja")
            templates[name] = _utf8(data, folder, file)
    if templates:
        return templates
    entry = folder.json("tokenizer_config.json").get("chat_template")
    try:
        if isinstance(entry, list):
            return {item["name"]: item["template"] for item in entry}
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{folder.path / 'tokenizer_config.json'}: a chat_template lacks name or template. Correct it."
        ) from error
    return {"default": entry} if isinstance(entry, str) else {}


def _utf8(data: bytes, folder: TokenizerFolder, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{folder.path / name} is not UTF-8 ({error}). Download it again.") from error


def end_ids(eos_id: int | None, folder: TokenizerFolder, model_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Every id that ends a text: the tokenizer's, and those in generation_config.json or else in config.json."""
    stated = folder.json("generation_config.json").get("eos_token_id")
    if stated is None:
        inner = model_config.get("text_config")
        inside = inner.get("eos_token_id") if isinstance(inner, dict) else None
        stated = model_config.get("eos_token_id", inside)
    listed = stated if isinstance(stated, list) else [stated]
    return tuple(dict.fromkeys(id for id in (eos_id, *listed) if isinstance(id, int)))
