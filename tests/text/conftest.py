"""Small tokenizers of the kinds that public models have, made on the fly."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from rondo.text import Tokenizer, train_bpe

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again, 1234567890 times.",
    "Élève, naïve façade; señor, über, Ærø - the diacritics of a café's menu.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "敏捷的棕色狐狸跳过了懒狗。日本語のテキスト。",
    "def reverse(word: str) -> str:\n    return word[::-1]\n\n\nprint(reverse('abc'))",
    "😀 👩‍👩‍👧 🇫🇷 emoji and \t tabs   and   runs of spaces",
] * 3

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    return CORPUS


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return train_bpe(CORPUS, 600)


def sentencepiece_bpe() -> models.BPE:
    """Llama-2-like: `<unk> <s> </s>`, the 256 bytes, then pieces. Rare characters are left to the bytes."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        limit_alphabet=60,
        special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer=trainer)
    model = json.loads(backend.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return models.BPE(
        vocab=model["vocab"], merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )


def _llama2() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(sentencepiece_bpe())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return backend


def _mistral() -> tokenizers.Tokenizer:
    backend = _llama2()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return backend


def _gemma() -> tokenizers.Tokenizer:
    backend = _llama2()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _metaspace() -> tokenizers.Tokenizer:
    backend = _mistral()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


def _metaspace_never() -> tokenizers.Tokenizer:
    backend = _metaspace()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    return backend


def _words() -> tokenizers.Tokenizer:
    words = sorted({word for line in CORPUS for word in line.split()})
    vocab = {word: index for index, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def _write(folder: Path, backend: tokenizers.Tokenizer) -> Path:
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    backend.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("é!", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _byte_level_folder(folder: Path) -> Path:
    tokenizer = train_bpe(CORPUS, 600)
    tokenizer.save(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("é!", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    return folder


_MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "llama2": _llama2,
    "mistral": _mistral,
    "gemma": _gemma,
    "metaspace": _metaspace,
    "metaspace_never": _metaspace_never,
    "words": _words,
}
KINDS = ("byte_level", *_MAKERS)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of each kind."""
    made = {"byte_level": _byte_level_folder(tmp_path_factory.mktemp("byte_level"))}
    for name, make in _MAKERS.items():
        made[name] = _write(tmp_path_factory.mktemp(name), make())
    return made


@pytest.fixture(scope="session", params=KINDS)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]
