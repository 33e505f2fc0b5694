"""Token by token, the text is the same as all at once, and never holds half a character."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.base.errors import ModelError
from rondo.text import Tokenizer, train_bpe
from rondo.text.decoding import parse_decoder

KINDS = ("byte_level", "llama2", "mistral", "gemma", "metaspace", "metaspace_never", "words")


@pytest.fixture(scope="module")
def loaded(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: Tokenizer.load(path) for name, path in folders.items()}


def stream(tokenizer: Tokenizer, ids: Sequence[int], chunk: int = 1, **options: bool) -> list[str]:
    detokenizer = tokenizer.detokenizer(**options)
    parts = [detokenizer.push(ids[at : at + chunk]) for at in range(0, len(ids), chunk)]
    return [*parts, detokenizer.flush()]


@given(kind=st.sampled_from(KINDS), data=st.data(), chunk=st.integers(1, 4), skip=st.booleans())
@settings(max_examples=150)
def test_any_tokens_in_any_chunks_give_the_whole_decode(
    loaded: dict[str, Tokenizer], kind: str, data: st.DataObject, chunk: int, skip: bool
) -> None:
    tokenizer = loaded[kind]
    # Beyond the vocabulary too: models pad theirs, and an untrained one samples from the padding.
    common = st.integers(0, tokenizer.vocab_size + 5)
    low = st.integers(0, min(tokenizer.vocab_size, 265))
    ids = data.draw(st.lists(st.one_of(low, common), max_size=40))
    assert "".join(stream(tokenizer, ids, chunk, skip_special=skip)) == tokenizer.decode(
        ids, skip_special=skip
    )


@given(kind=st.sampled_from(KINDS), text=st.text(max_size=60))
@settings(max_examples=100)
def test_text_comes_in_whole_characters(loaded: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = loaded[kind]
    ids = tokenizer.encode(text)
    parts = stream(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_a_character_over_several_tokens_comes_once_it_is_whole(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    ids = tokenizer.encode("a𝄞b")
    assert len(ids) == 6
    assert stream(tokenizer, ids) == ["a", "", "", "", "𝄞", "b", ""]


def test_a_run_of_byte_tokens_comes_when_it_ends(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["llama2"]
    ids = [3 + byte for byte in "é".encode()]
    letter = tokenizer.encode("a", add_special=False)[-1:]
    assert next(part for part in stream(tokenizer, [*ids, *letter]) if part).startswith("é")
    assert stream(tokenizer, ids)[-1] == "é"


def test_an_unfinished_character_ends_as_a_replacement_mark(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    ids = tokenizer.encode("a𝄞")[:-1]
    assert stream(tokenizer, ids)[-1] == "\ufffd"
    assert tokenizer.decode(ids) == "a\ufffd"


def test_a_continued_text_keeps_its_first_space(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["llama2"]
    prompt = tokenizer.encode("The quick")
    rest = tokenizer.encode("The quick brown dog")[len(prompt) :]
    assert tokenizer.detokenizer().push(rest) == "brown dog"
    assert tokenizer.detokenizer(after=prompt).push(rest) == " brown dog"


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma"])
def test_token_bytes_add_up_to_the_text(loaded: dict[str, Tokenizer], kind: str, corpus: list[str]) -> None:
    tokenizer = loaded[kind]
    for text in corpus:
        ids = tokenizer.encode(text, add_special=False)
        data = b"".join(map(tokenizer.token_bytes, ids))
        assert data.decode().removeprefix(" ") == tokenizer.decode(ids)


def test_an_unknown_decoder_is_named() -> None:
    with pytest.raises(ModelError, match="WordPiece"):
        parse_decoder({"type": "WordPiece", "prefix": "##", "cleanup": True}, "tokenizer.json")


def test_special_tokens_that_are_kept():
    tokenizer = train_bpe(["abc"], 300, ("<|endoftext|>", "[CALL]", "[OTHER]"))
    ids = tokenizer.encode("a[CALL]b[OTHER]c", add_special=False)
    kept = tokenizer.token_id("[CALL]")
    detokenizer = tokenizer.detokenizer(keep=[kept])
    assert detokenizer.push(ids) + detokenizer.flush() == "a[CALL]bc"
    assert tokenizer.detokenizer().push(ids) == "abc"
    assert tokenizer.detokenizer(skip_special=False, keep=[kept]).push(ids) == "a[CALL]b[OTHER]c"
