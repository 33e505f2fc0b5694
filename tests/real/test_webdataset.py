"""WebDataset's own library reads the shards that `rondo data prepare` writes."""

import json
from pathlib import Path

import pytest

from rondo.data.preparation.prepare import PrepareRequest, prepare
from rondo.text.tokenizer import Tokenizer
from support.peers import run_peer
from support.tiny import tiny_tokenizer

pytestmark = pytest.mark.real


def test_its_samples_are_our_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    (tmp_path / "tokenizer").mkdir()
    tiny_tokenizer().save(tmp_path / "tokenizer")
    texts = [f"the user asks {n} " * (1 + n % 9) for n in range(500)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    request = PrepareRequest(
        [str(tmp_path / "text.jsonl")],
        tmp_path / "tokenizer",
        str(tmp_path / "out"),
        part_bytes=8000,
        shard_bytes=60_000,
    )
    index = prepare(request)
    assert len(index.shards) > 5
    lines = run_peer("webdataset", Path(__file__).with_name("_webdataset.py"), tmp_path / "out").splitlines()
    samples = [json.loads(line) for line in lines]
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    end = tokenizer.eos_ids[0]
    assert [sample["tokens"] for sample in samples] == [[*tokenizer.encode(text), end] for text in texts]
    assert len({sample["key"] for sample in samples}) == len(texts)
    assert {sample["dtype"] for sample in samples} == {index.dtype}
