"""Loading, encoding, decoding and saving, beside transformers on the same folder."""

import json
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rondo.base.errors import InvalidRequest, ModelError
from rondo.text import Tokenizer, train_bpe

KINDS = ("byte_level", "llama2", "mistral", "gemma", "metaspace", "metaspace_never", "words")

Pairs = dict[str, tuple[Tokenizer, PreTrainedTokenizerFast]]
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def pairs(folders: dict[str, Path]) -> Pairs:
    return {
        name: (Tokenizer.load(folder), PreTrainedTokenizerFast.from_pretrained(folder))
        for name, folder in folders.items()
    }


texts = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab ▁<>sé!\n\t0日😀<tool></s>", max_size=40),
    st.lists(
        st.sampled_from(["<s>", "</s>", "<unk>", "<tool>", "é!", "<|im_end|>", "<0x41>", " the", "  ", "狗"])
    ).map("".join),
)


@given(kind=st.sampled_from(KINDS), text=texts, add_special=st.booleans(), skip_special=st.booleans())
@settings(max_examples=400)
def test_encode_and_decode_equal_those_of_transformers(
    pairs: Pairs, kind: str, text: str, add_special: bool, skip_special: bool
) -> None:
    ours, theirs = pairs[kind]
    ids = ours.encode(text, add_special=add_special)
    assert ids == theirs.encode(text, add_special_tokens=add_special)
    assert ours.decode(ids, skip_special=skip_special) == theirs.decode(ids, skip_special_tokens=skip_special)


@given(kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=200)
def test_decoding_any_ids_equals_that_of_transformers(pairs: Pairs, kind: str, data: st.DataObject) -> None:
    ours, theirs = pairs[kind]
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=30))
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@given(text=st.text(max_size=100))
def test_byte_level_gives_back_any_text(pairs: Pairs, text: str) -> None:
    ours, _ = pairs["byte_level"]
    assert ours.decode(ours.encode(text), skip_special=False) == text


def test_facts_equal_those_of_transformers(pairs: Pairs) -> None:
    for ours, theirs in pairs.values():
        assert ours.vocab_size == len(theirs)
        assert ours.bos_id == theirs.bos_token_id
        assert ours.pad_id == theirs.pad_token_id
        assert ours.eos_ids[0] == theirs.eos_token_id
        assert ours.special_ids == {id for id, token in theirs.added_tokens_decoder.items() if token.special}


def test_a_batch_is_its_texts_one_by_one(pairs: Pairs, corpus: list[str]) -> None:
    for ours, _ in pairs.values():
        assert ours.encode_batch(corpus) == [ours.encode(text) for text in corpus]


def test_a_save_is_byte_equal_and_outlives_its_source(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in folder.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    tokenizer = Tokenizer.load(source)
    for file in source.iterdir():
        file.unlink()
    tokenizer.save(tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()} == {
        file.name: file.read_bytes() for file in folder.iterdir()
    }


def test_auto_tokenizer_loads_a_save(byte_level: Tokenizer, tmp_path: Path, corpus: list[str]) -> None:
    byte_level.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": corpus[2]}]
    assert theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == (
        byte_level.apply_chat(messages)
    )
    assert theirs.encode(corpus[3]) == byte_level.encode(corpus[3])
    assert theirs.eos_token_id == byte_level.eos_ids[0]


def test_end_ids_come_from_every_file_that_states_them(folders: dict[str, Path], tmp_path: Path) -> None:
    Tokenizer.load(folders["llama2"]).save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert Tokenizer.load(tmp_path).eos_ids == (2, 9)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert Tokenizer.load(tmp_path).eos_ids == (2, 7, 8)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert Tokenizer.load(tmp_path).eos_ids == (2, 5)


def _bare(folder: Path, config: dict[str, object], special_map: dict[str, object] | None = None) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2}, unk_token="a"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_tokens([AddedToken("<known>", lstrip=True)])
    backend.enable_padding(pad_token="a", length=5)
    backend.enable_truncation(2)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if special_map is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(special_map))


PROSE = ("a b <s> <known> a <new>b </s>a <extra>", "<s></s><new> <known>", "<p> <s> <q> a")


@pytest.mark.parametrize(
    ("config", "special_map"),
    [
        ({"bos_token": "<s>", "eos_token": "</s>"}, None),
        (
            {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": True, "normalized": False}},
            None,
        ),
        ({"eos_token": "<known>"}, {"bos_token": "<s>", "eos_token": {"content": "</s>", "rstrip": True}}),
        ({"eos_token": "</s>", "extra_special_tokens": ["<extra>"]}, None),
        ({"eos_token": "</s>", "additional_special_tokens": ["<extra>", "<new>"]}, None),
        (
            {"eos_token": "</s>", "image_token": "<new>", "extra_special_tokens": {"call_token": "<extra>"}},
            None,
        ),
        (
            {
                "eos_token": "</s>",
                "added_tokens_decoder": {
                    "11": {"content": "<q>", "special": False, "normalized": False},
                    "5": {"content": "</s>", "special": True, "normalized": False, "rstrip": True},
                    "4": {"content": "<p>", "special": False, "normalized": False},
                },
            },
            {"eos_token": "<ignored>"},
        ),
        ({"eos_token": "</s>", "split_special_tokens": True}, None),
        ({"eos_token": "</s>", "add_bos_token": True, "bos_token": "<s>", "add_eos_token": True}, None),
        ({"eos_token": None, "unk_token": "a", "sep_token": "<sep>", "model_max_length": 4}, {}),
    ],
)
def test_special_tokens_are_gathered_as_transformers_does(
    tmp_path: Path, config: dict[str, object], special_map: dict[str, object] | None
) -> None:
    _bare(tmp_path, config, special_map)
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in PROSE:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.eos_ids == ((theirs.eos_token_id,) if theirs.eos_token_id is not None else ())


def test_broken_files_are_named_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a folder"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError, match="save_pretrained"):
        Tokenizer.load(tmp_path)
    whole = (folders["llama2"] / "tokenizer.json").read_bytes()
    for broken in (
        whole[:-100],
        b"[]",
        b"{}",
        b"\xff\xfe",
        whole.replace(b"ByteFallback", b"ByteFallbock"),
        DEEP,
    ):
        (tmp_path / "tokenizer.json").write_bytes(broken)
        with pytest.raises(ModelError, match=r"tokenizer\.json") as caught:
            Tokenizer.load(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_bytes(whole)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": ')
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "added_tokens_decoder is malformed"),
        ("tokenizer_config.json", '{"added_tokens_decoder": 3}', "added_tokens_decoder is malformed"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder is malformed"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": 2}}', "added_tokens_decoder is malformed"),
        ("tokenizer_config.json", '{"extra_special_tokens": 3}', "extra_special_tokens is malformed"),
        ("tokenizer_config.json", '{"additional_special_tokens": "<x>"}', "special_tokens is malformed"),
        ("tokenizer_config.json", '{"chat_template": [{"name": []}]}', "chat_template"),
        ("tokenizer_config.json", DEEP, "not valid JSON"),
        ("added_tokens.json", '{"a": [1]}', r"added_tokens\.json is malformed"),
        ("config.json", DEEP, "not valid JSON"),
    ],
)
def test_a_malformed_field_is_named(
    file: str, content: str | bytes, named: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folders["llama2"] / "tokenizer.json").read_bytes())
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=named) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_model_config_of_any_shape_states_no_end(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folders["llama2"] / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text('{"text_config": 3, "eos_token_id": {"a": 1}}')
    assert Tokenizer.load(tmp_path).eos_ids == ()


def test_bad_text_and_bad_ids_are_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        byte_level.encode("a\ud800")
    with pytest.raises(InvalidRequest, match="vocabulary"):
        byte_level.token_bytes(10**6)


def test_threads_share_a_tokenizer(byte_level: Tokenizer, corpus: list[str]) -> None:
    text = " ".join(corpus)
    ids = byte_level.encode(text)
    results: list[str] = []

    def work() -> None:
        detokenizer = byte_level.detokenizer()
        results.append("".join(detokenizer.push([id]) for id in ids) + detokenizer.flush())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert results == [text] * 4


def test_bytes_of_a_token_are_looked_up_once():
    tokenizer = train_bpe(["abc def"], 300)
    backend, asked = tokenizer._backend, []

    class Counted:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(backend, name)

    tokenizer._backend = Counted()
    want = [tokenizer.token_bytes(65) for _ in range(3)]
    assert want == [want[0]] * 3
    assert len(asked) <= 1
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            tokenizer.token_bytes(10_000)
