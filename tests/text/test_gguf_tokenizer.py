"""Tokenizers of GGUF files have the token ids of the Hugging Face tokenizers that they were made from. The same with
the vocabularies of real models: tests/real/test_gguf_llama_cpp.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from rondo.base.errors import ModelError
from rondo.text.folder import TokenizerFolder
from rondo.text.gguf.pretokenizers import PRE_TOKENIZERS, name_of, patterns_of, spec_of
from rondo.text.gguf.reading import EMBEDDED, PREFIX
from rondo.text.gguf.writing import tokenizer_metadata
from rondo.text.tokenizer import Tokenizer
from support.gguf_files import write_metadata
from support.tiny import VOCAB, tiny_tokenizer

TEXTS = [
    "",
    " ",
    "   three spaces,\ttabs\n\n\nand lines\r\n",
    "I've TOLD you he'S there, we'Re LATE",
    "3 33 333 3333 33333 3.3 3..3 ١٢٣",
    "größer naïve Ünïcödé e\u0301 ﬁ",
    "日本語のテキスト、한국어 중국어 中文字符",
    "кириллица ελληνικά עברית العربية हिन्दी ไทย",
    "🚀 😶‍🌫️ 👩‍👩‍👧‍👦 ✅",
    "def f(x):\n    return {'a': x[0] != 1}  # ok?!",
    "<|im_start|>user\nhi<|im_end|> <think>no</think>",
    "\u200b\ufeff\u00a0 zero width",
    "a" * 50 + "!" * 30,
]
CORPUS = [*TEXTS, "the user asks and the assistant answers", "reverse add sort countdown to"] * 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre: str) -> TokenizerFolder:
    """A trained tokenizer with the splits of that name."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=PRE_TOKENIZERS[pre].ignore_merges))
    backend.pre_tokenizer = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
                   | {"pre_tokenizer": spec_of(PRE_TOKENIZERS[pre].patterns)}
                   | dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
                   | {"added_tokens": []})
    ).pre_tokenizer  # fmt: skip
    backend.normalizer = normalizers.NFC() if PRE_TOKENIZERS[pre].nfc else None
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer=trainer)
    backend.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    return folder_of(backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def sentencepiece(prefix: bool) -> TokenizerFolder:
    """Like Llama 2's or Gemma's: characters with byte fallback, spaces as marks."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    replace = normalizers.Replace(" ", "▁")
    both = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    backend.normalizer = both if prefix else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=pieces, limit_alphabet=120, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer=trainer)
    backend.pre_tokenizer = None
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] < 3]
    return folder_of(
        tokenizers.Tokenizer.from_str(json.dumps(spec)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def folder_of(backend: tokenizers.Tokenizer, **named: str) -> TokenizerFolder:
    config = json.dumps(named).encode()
    return TokenizerFolder(
        Path("original"), {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": config}
    )


def metadata_of(folder: TokenizerFolder) -> dict[str, Any]:
    """Without the tokenizer.json itself: a file of llama.cpp's converter has none."""
    original = Tokenizer.from_files(folder)
    metadata = tokenizer_metadata(folder, original.vocab_size + 5, original.eos_ids)
    del metadata[EMBEDDED]
    return metadata


def check_same(original: Tokenizer, read: Tokenizer) -> None:
    for text in TEXTS:
        assert read.encode(text) == original.encode(text), text
        ids = original.encode(text)
        assert read.decode(ids) == original.decode(ids), text
    assert read.eos_ids[: len(original.eos_ids)] == original.eos_ids  # llama.cpp adds others by their text
    assert (read.bos_id, read.pad_id) == (original.bos_id, original.pad_id)
    assert read.special_ids == original.special_ids


@pytest.mark.parametrize(
    "pre", ["llama-bpe", "qwen2", "gpt-2", "smollm", "tekken", "gpt-4o", "dbrx", "default"]
)
def test_byte_level(pre: str, tmp_path: Path) -> None:
    folder = byte_level(pre)
    metadata = metadata_of(folder)
    assert metadata[f"{PREFIX}pre"] == pre
    check_same(Tokenizer.from_files(folder), Tokenizer.load(write_metadata(tmp_path / "t.gguf", metadata)))


@pytest.mark.parametrize("prefix", [True, False], ids=["like llama 2", "like gemma"])
def test_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    folder = sentencepiece(prefix)
    original = Tokenizer.from_files(folder)
    metadata = metadata_of(folder)
    assert metadata[f"{PREFIX}model"] == "llama"
    assert metadata[f"{PREFIX}add_space_prefix"] is prefix
    metadata[f"{PREFIX}add_bos_token"] = False
    check_same(original, Tokenizer.load(write_metadata(tmp_path / "t.gguf", metadata)))


def test_bos_is_added_as_the_file_specifies(tmp_path: Path) -> None:
    metadata = metadata_of(sentencepiece(True))
    del metadata[f"{PREFIX}add_bos_token"]
    by_default = Tokenizer.load(write_metadata(tmp_path / "default.gguf", metadata))
    assert by_default.encode("a")[0] == by_default.bos_id == 1
    both = {f"{PREFIX}add_bos_token": True, f"{PREFIX}add_eos_token": True}
    read = Tokenizer.load(write_metadata(tmp_path / "both.gguf", metadata | both))
    assert (read.encode("a")[0], read.encode("a")[-1]) == (1, 2)


def test_the_embedded_tokenizer_takes_precedence(tmp_path: Path) -> None:
    folder = byte_level("qwen2")
    embedded = folder.files["tokenizer.json"].decode()
    metadata = metadata_of(folder) | {EMBEDDED: embedded, f"{PREFIX}pre": "unknown"}
    files = Tokenizer.load(write_metadata(tmp_path / "t.gguf", metadata))
    check_same(Tokenizer.from_files(folder), files)


def test_chat_templates_and_end_ids(tmp_path: Path) -> None:
    base = tiny_tokenizer()
    base.save(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools {{ tools }}")
    original = Tokenizer.load(tmp_path)
    metadata = tokenizer_metadata(original._folder, VOCAB, original.eos_ids)
    read = Tokenizer.load(write_metadata(tmp_path / "t.gguf", metadata))
    messages = [{"role": "user", "content": "hi"}]
    assert read.render(messages) == original.render(messages)
    assert read.tool_template == "tools {{ tools }}"
    assert read.eos_ids == original.eos_ids
    assert len(read.eos_ids) == 2


def test_control_tokens_that_end_a_turn_are_recognized_by_their_text(tmp_path: Path) -> None:
    metadata = metadata_of(byte_level("qwen2"))
    del metadata[f"{PREFIX}eos_token_id"]
    read = Tokenizer.load(write_metadata(tmp_path / "t.gguf", metadata))
    assert set(read.eos_ids) == {read.token_id("<|im_end|>"), read.token_id("<|endoftext|>")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{PREFIX}model": "t5"}, "tokenizer model 't5' .* supported: gpt2, llama"),
        ({f"{PREFIX}model": None}, f"'{PREFIX}model' is missing"),
        ({f"{PREFIX}pre": "grok-2"}, "pre-tokenizer 'grok-2' .* is not supported"),
        ({f"{PREFIX}tokens": None}, f"'{PREFIX}tokens' is missing"),
        ({f"{PREFIX}tokens": 3}, f"'{PREFIX}tokens' is '3', which has the wrong type"),
        ({f"{PREFIX}token_type": [1, 2]}, f"'{PREFIX}token_type' has 2 entries for"),
        ({f"{PREFIX}eos_token_id": 10**6}, f"'{PREFIX}eos_token_id' is 1000000, but there are"),
        ({f"{PREFIX}merges": None}, f"'{PREFIX}merges' is missing"),
    ],
)
def test_errors_name_file_and_field(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    metadata = {k: v for k, v in (metadata_of(byte_level("qwen2")) | changes).items() if v is not None}
    with pytest.raises(ModelError, match=message) as error:
        Tokenizer.load(write_metadata(tmp_path / "bad.gguf", metadata))
    assert "bad.gguf" in error.value.message


def test_what_gguf_cannot_express(tmp_path: Path) -> None:
    folder = byte_level("qwen2")
    spec = json.loads(folder.files["tokenizer.json"])

    def error(**changes: Any) -> str:
        files = folder.files | {"tokenizer.json": json.dumps(spec | changes).encode()}
        with pytest.raises(ModelError) as raised:
            tokenizer_metadata(TokenizerFolder(tmp_path, files), 700, ())
        return raised.value.message

    assert "pre-tokenizer that llama.cpp has no name for" in error(pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(ModelError, match=r"\d+ tokens for 10 rows of the embedding"):
        tokenizer_metadata(folder, 10, ())


def test_names_of_pre_tokenizers() -> None:
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    patterns = patterns_of({"type": "Sequence", "pretokenizers": [digits, level]})
    assert patterns is not None
    assert name_of(patterns, False) == "smollm"
    assert patterns_of(level | {"add_prefix_space": True}) is None
    for name, each in PRE_TOKENIZERS.items():
        written = name_of(each.patterns, each.ignore_merges)
        assert written is not None
        assert PRE_TOKENIZERS[written].patterns == each.patterns, name
