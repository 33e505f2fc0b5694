"""The files of a Hugging Face tokenizer, built from a GGUF file's metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rondo.base.errors import ModelError
from rondo.base.storage.gguf import Gguf, Strings
from rondo.text.gguf.pretokenizers import PRE_TOKENIZERS, spec_of

PREFIX = "tokenizer.ggml."
EMBEDDED = "tokenizer.huggingface.json"
"""Field with a complete tokenizer.json, which takes precedence."""
TEMPLATE = "tokenizer.chat_template"
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Values of `tokenizer.ggml.token_type`."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
ENDS = (
    *(
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
    ),
    *("<|eom_id|>", "<EOT>", "<|end_of_text|>", "<eos>"),
)
"""Control tokens that end a text in llama.cpp, besides those that the metadata name."""
NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

Spec = dict[str, Any]


def tokenizer_files(gguf: Gguf) -> dict[str, bytes]:
    """tokenizer.json and its companions by name."""
    tokens, types = tokens_of(gguf)
    embedded = gguf.get(EMBEDDED, str)
    spec = (
        embedded.encode() if embedded else json.dumps(_spec(gguf, tokens, types), ensure_ascii=False).encode()
    )
    ends = end_ids(gguf, tokens, types)
    named = {name: tokens[index] for name, index in _named(gguf, len(tokens)).items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    files = {
        "tokenizer.json": spec,
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False).encode(),
        "generation_config.json": json.dumps({"eos_token_id": ends}, indent=2).encode(),
    }
    return files | _templates(gguf)


def tokens_of(gguf: Gguf) -> tuple[list[str], list[int]]:
    """The text and the type of each token."""
    tokens = gguf.need(f"{PREFIX}tokens", Strings).values
    types = gguf.get(f"{PREFIX}token_type", list) or [1] * len(tokens)
    if len(types) != len(tokens):
        raise gguf.error(f"{PREFIX}token_type", f"has {len(types)} entries for {len(tokens)} tokens")
    return tokens, types


def special_ids(gguf: Gguf) -> dict[str, int]:
    """The ids of the BOS and padding tokens, if any."""
    return {name: index for name, index in _named(gguf, None).items() if name in ("bos_token", "pad_token")}


def end_ids(gguf: Gguf, tokens: Sequence[str] | None = None, types: Sequence[int] = ()) -> list[int]:
    """The ids that end a text: the named ones, then control tokens that end one by their text, as in llama.cpp."""
    if tokens is None:
        if f"{PREFIX}tokens" not in gguf.metadata:
            return []
        tokens, types = tokens_of(gguf)
    named = (_id(gguf, name, len(tokens)) for name in ("eos", "eot", "eom"))
    by_text = (i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] in ENDS)
    return list(dict.fromkeys(index for index in (*named, *by_text) if index is not None))


def _id(gguf: Gguf, name: str, count: int | None) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    index: int | None = gguf.get(key, int)
    if index is not None and count is not None and not 0 <= index < count:
        raise gguf.error(key, f"is {index}, but there are {count} tokens")
    return index


def _named(gguf: Gguf, count: int | None) -> dict[str, int]:
    found = {name: _id(gguf, key, count) for key, name in NAMED.items()}
    return {name: index for name, index in found.items() if index is not None}


def _templates(gguf: Gguf) -> dict[str, bytes]:
    """The chat templates: the default one, and those that `tokenizer.chat_templates` names."""
    template = gguf.get(TEMPLATE, str)
    files = {} if template is None else {"chat_template.jinja": template.encode()}
    listed = gguf.get("tokenizer.chat_templates", Strings)
    for name in listed.values if listed else ():
        text = gguf.need(f"{TEMPLATE}.{name}", str)
        if name.replace("_", "").replace("-", "").isalnum() and name != "default":
            files[f"additional_chat_templates/{name}.jinja"] = text.encode()
    return files


def _spec(gguf: Gguf, tokens: list[str], types: list[int]) -> Spec:
    model = gguf.need(f"{PREFIX}model", str)
    build = MODELS.get(model)
    if build is None:
        raise ModelError(
            f"{gguf.path}: tokenizer model {model!r} ({PREFIX}model) is not supported; supported: "
            f"{', '.join(MODELS)}. Import the model from its Hugging Face folder.",
            param=f"{PREFIX}model",
        )
    return build(gguf, tokens, types)


def _bpe(gguf: Gguf, tokens: list[str], types: list[int]) -> Spec:
    """Byte-level BPE, as in GPT-2, Llama 3 and Qwen."""
    name = gguf.get(f"{PREFIX}pre", str, "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise ModelError(
            f"{gguf.path}: pre-tokenizer {name!r} ({PREFIX}pre) is not supported; supported: "
            f"{', '.join(PRE_TOKENIZERS)}. Import the model from its Hugging Face folder.",
            param=f"{PREFIX}pre",
        )
    merges = gguf.need(f"{PREFIX}merges", Strings).values
    model = {"type": "BPE", "ignore_merges": pre.ignore_merges, **_vocabulary(tokens, types, merges)}
    return _whole(
        gguf,
        tokens,
        types,
        model,
        normalizer={"type": "NFC"} if pre.nfc else None,
        pre_tokenizer=spec_of(pre.patterns),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        adds_bos=pre.adds_bos,
    )


def _sentencepiece(gguf: Gguf, tokens: list[str], types: list[int]) -> Spec:
    """SentencePiece's BPE with byte fallback, as in Llama 2, Mistral and Gemma, as the library `tokenizers` runs it."""
    scores = gguf.need(f"{PREFIX}scores", list)
    if len(scores) != len(tokens):
        raise gguf.error(f"{PREFIX}scores", f"has {len(scores)} entries for {len(tokens)} tokens")
    tokens = [
        t.replace(" ", SPACE) if kind == USER_DEFINED else t for t, kind in zip(tokens, types, strict=True)
    ]
    prefix = gguf.get(f"{PREFIX}add_space_prefix", bool, True)
    merges = merges_of({t: s for t, s, k in zip(tokens, scores, types, strict=True) if k == 1})
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    model = {
        "type": "BPE",
        "unk_token": unknown,
        "fuse_unk": True,
        "byte_fallback": True,
        **_vocabulary(tokens, types, merges),
    }
    replace: Spec = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders: list[Spec] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        prepend: Spec = {"type": "Prepend", "prepend": SPACE}
        replace = {"type": "Sequence", "normalizers": [prepend, replace]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    decoder = {"type": "Sequence", "decoders": decoders}
    return _whole(gguf, tokens, types, model, normalizer=replace, decoder=decoder, adds_bos=True)


def merges_of(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges that give SentencePiece's segmentation: every split of a token into two tokens, best score first."""
    found = [
        (score, len(token[:at]), token[:at], token[at:])
        for token, score in scores.items()
        for at in range(1, len(token))
        if token[:at] in scores and token[at:] in scores
    ]
    found.sort(key=lambda each: (-each[0], -each[1]))
    return [(left, right) for _, _, left, right in found]


def _vocabulary(tokens: list[str], types: list[int], merges: Sequence[str | tuple[str, str]]) -> Spec:
    """Unused ids are left out: their made-up texts must not match."""
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    return {"vocab": vocabulary, "merges": merges}


def _whole(
    gguf: Gguf,
    tokens: list[str],
    types: list[int],
    model: Spec,
    *,
    decoder: Spec,
    adds_bos: bool,
    normalizer: Spec | None = None,
    pre_tokenizer: Spec | None = None,
) -> Spec:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added(tokens, types)),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _template(gguf, tokens, adds_bos),
        "decoder": decoder,
        "model": model,
    }


def _added(tokens: list[str], types: list[int]) -> Iterator[Spec]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            yield {"id": index, "content": token, **flags, "special": kind != USER_DEFINED}


def _template(gguf: Gguf, tokens: list[str], adds_bos: bool) -> Spec | None:
    """The BOS and EOS tokens that are added to each text."""
    added = {
        "bos": gguf.get(f"{PREFIX}add_bos_token", bool, adds_bos),
        "eos": gguf.get(f"{PREFIX}add_eos_token", bool, False),
    }
    ids = {name: _id(gguf, name, len(tokens)) for name, wanted in added.items() if wanted}
    found = {name: index for name, index in ids.items() if index is not None}
    if not found:
        return None

    def around(kind: str, number: int) -> list[Spec]:
        text = {"Sequence": {"id": kind, "type_id": number}}
        special = {
            name: {"SpecialToken": {"id": tokens[index], "type_id": number}} for name, index in found.items()
        }
        return (
            [special[name] for name in ("bos",) if name in special]
            + [text]
            + [special[name] for name in ("eos",) if name in special]
        )

    names = {
        tokens[index]: {"id": tokens[index], "ids": [index], "tokens": [tokens[index]]}
        for index in found.values()
    }
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": names,
    }


MODELS: dict[str, Callable[[Gguf, list[str], list[int]], Spec]] = {"gpt2": _bpe, "llama": _sentencepiece}
