"""The metadata of a GGUF file that describe a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.base.errors import ModelError
from rondo.text.conversation.special import chat_templates
from rondo.text.folder import TokenizerFolder
from rondo.text.gguf.pretokenizers import name_of, patterns_of
from rondo.text.gguf.reading import (
    CONTROL,
    EMBEDDED,
    PREFIX,
    SPACE,
    TEMPLATE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from rondo.text.tokenizer import Tokenizer

NORMAL, BYTE = 1, 6
UNSCORED = -1000.0
ENDS = ("eos", "eot", "eom")
"""Fields for the ids that end a text, in the order in which they are filled."""


def tokenizer_metadata(folder: TokenizerFolder, vocab_size: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Fields for llama.cpp, and the tokenizer.json itself, so that nothing is lost for a reader that supports it."""
    spec = folder.json("tokenizer.json")
    tokenizer = Tokenizer.from_files(folder)
    tokens, types = _tokens(spec, folder, vocab_size)
    fields: dict[str, Any] = {"tokens": tokens, "token_type": types, **_model(spec, folder, tokens, types)}
    ends = list(dict.fromkeys([*tokenizer.eos_ids, *eos_ids]))
    named = {"bos": tokenizer.bos_id, "padding": tokenizer.pad_id, **dict(zip(ENDS, ends, strict=False))}
    unknown = spec["model"].get("unk_token")
    named["unknown"] = None if unknown is None else tokenizer.token_id(unknown)
    fields |= {f"{name}_token_id": index for name, index in named.items() if index is not None}
    added = tokenizer.encode("")
    fields["add_bos_token"] = tokenizer.bos_id is not None and added[:1] == [tokenizer.bos_id]
    fields["add_eos_token"] = bool(ends) and added[-1:] == ends[:1] and len(added) > fields["add_bos_token"]
    metadata = {PREFIX + name: value for name, value in fields.items()}
    return metadata | {EMBEDDED: folder.files["tokenizer.json"].decode()} | _templates(folder)


def _tokens(spec: Mapping[str, Any], folder: TokenizerFolder, vocab_size: int) -> tuple[list[str], list[int]]:
    """The text and the type of every row of the embedding."""
    model = spec["model"]
    if model.get("type", "BPE") != "BPE":
        raise _unsupported(folder, f"model type {model['type']!r}", "GGUF files have BPE tokenizers")
    texts = {index: token for token, index in model["vocab"].items()}
    kinds = dict.fromkeys(texts, NORMAL)
    if model.get("byte_fallback"):
        kinds |= {i: BYTE for i, text in texts.items() if len(text) == 6 and text.startswith("<0x")}
    for added in spec.get("added_tokens", ()):
        texts[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    unknown = model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        kinds[unknown] = UNKNOWN
    if max(texts, default=0) >= vocab_size:
        raise _unsupported(
            folder,
            f"{max(texts) + 1} tokens for {vocab_size} rows of the embedding",
            "llama.cpp needs a row for each token: resize the embedding",
        )
    rows = range(vocab_size)
    return [texts.get(i, f"[PAD{i}]") for i in rows], [kinds.get(i, UNUSED) for i in rows]


def _model(
    spec: Mapping[str, Any], folder: TokenizerFolder, tokens: list[str], types: list[int]
) -> dict[str, Any]:
    merges = [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in spec["model"]["merges"]]
    if spec["model"].get("byte_fallback"):
        return _sentencepiece(spec, tokens, types, merges)
    patterns = patterns_of(spec.get("pre_tokenizer"))
    name = None if patterns is None else name_of(patterns, bool(spec["model"].get("ignore_merges")))
    if name is None:
        raise _unsupported(
            folder,
            "a pre-tokenizer that llama.cpp has no name for",
            "its token ids would differ there. Serve the model with Rondo, vLLM or transformers",
        )
    return {"model": "gpt2", "pre": name, "merges": [" ".join(merge) for merge in merges]}


def _sentencepiece(
    spec: Mapping[str, Any], tokens: list[str], types: list[int], merges: list[tuple[str, ...]]
) -> dict[str, Any]:
    """llama.cpp joins the pair whose token has the best score: the earlier a merge, the better its token's score."""
    rank: dict[str, float] = {}
    for place, (left, right) in enumerate(merges):
        rank.setdefault(left + right, -float(place))
    scores = [
        rank.get(token, UNSCORED if kind != NORMAL else -1e6)
        for token, kind in zip(tokens, types, strict=True)
    ]
    prefix = SPACE in str(spec.get("normalizer", {}) or {}) and "Prepend" in str(spec.get("normalizer"))
    prefix |= "Metaspace" in str(spec.get("pre_tokenizer"))
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefix}


def _templates(folder: TokenizerFolder) -> dict[str, Any]:
    templates = chat_templates(folder)
    others = sorted(name for name in templates if name != "default")
    fields: dict[str, Any] = {f"{TEMPLATE}.{name}": templates[name] for name in others}
    if others:
        fields["tokenizer.chat_templates"] = others
    return fields | ({TEMPLATE: templates["default"]} if "default" in templates else {})


def _unsupported(folder: TokenizerFolder, problem: str, remedy: str) -> ModelError:
    return ModelError(f"{folder.path / 'tokenizer.json'} has {problem}, which GGUF cannot express: {remedy}.")
