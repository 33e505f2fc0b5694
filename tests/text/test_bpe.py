"""Training a tokenizer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.base.errors import ConfigError
from rondo.text import Tokenizer, train_bpe


def saved(tokenizer: Tokenizer, folder: Path) -> dict[str, bytes]:
    tokenizer.save(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_same_texts_make_the_same_tokenizer(corpus: list[str], tmp_path: Path) -> None:
    code = (
        "import sys, json; from rondo.text import train_bpe; "
        "train_bpe(json.loads(sys.argv[1]), 600).save(sys.argv[2])"
    )
    here = saved(train_bpe(iter(corpus), 600), tmp_path / "here")
    for run in ("1", "2"):
        args = [sys.executable, "-c", code, json.dumps(corpus), str(tmp_path / run)]
        subprocess.run(args, check=True, timeout=60)
        assert {file.name: file.read_bytes() for file in (tmp_path / run).iterdir()} == here


def test_ids_and_roles(corpus: list[str]) -> None:
    tokenizer = train_bpe(corpus, 500)
    assert tokenizer.vocab_size == 500
    assert [tokenizer.token_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [
        0,
        1,
        2,
    ]
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.pad_id == 0
    assert tokenizer.bos_id is None
    assert tokenizer.encode("<|im_start|>a")[0] == 1


def test_every_byte_is_in_the_vocabulary() -> None:
    tokenizer = train_bpe(["a"], 300)
    assert {tokenizer.token_bytes(id) for id in range(3, tokenizer.vocab_size)} >= {
        bytes([b]) for b in range(256)
    }


def test_digits_stand_alone(corpus: list[str]) -> None:
    tokenizer = train_bpe([*corpus, "1234 1234 1234 1234"], 600)
    assert len(tokenizer.encode("1234")) == 4


def test_a_saved_one_is_the_same(corpus: list[str], tmp_path: Path) -> None:
    tokenizer = train_bpe(corpus, 400, ["<pad>", "<s>", "</s>"], "{{ bos_token }}", bos_token="<s>")
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.bos_id, loaded.pad_id, loaded.eos_ids) == (1, 0, (2, 0))
    assert loaded.render([{"role": "user", "content": "x"}]) == "<s>"
    assert loaded.encode(corpus[4]) == tokenizer.encode(corpus[4])


def test_impossible_wishes_are_refused(corpus: list[str]) -> None:
    with pytest.raises(ConfigError, match="259"):
        train_bpe(corpus, 100)
    with pytest.raises(ConfigError, match="</s>"):
        train_bpe(corpus, 400, eos_token="</s>")
    with pytest.raises(ConfigError, match="special_tokens"):
        train_bpe(corpus, 400, [])
