"""What a job may learn from: files, prepared shards and mixtures; the same steps whatever they come in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rondo import models
from rondo.base.errors import ConfigError, InvalidRequest, ModelError, NotFound
from rondo.base.storage.files import atomic_dir
from rondo.data.batching.sampler import Position
from rondo.data.input.mixture import Weighted, weighted
from rondo.data.preparation.prepare import PrepareRequest, prepare
from rondo.text.bpe import train_bpe
from rondo.text.tokenizer import Tokenizer
from rondo.train import jobs
from rondo.train.config import TrainConfig
from rondo.train.recipes import data
from rondo.train.recipes.batches import loader
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

TEXTS = [f"the user asks {i} and the assistant answers {i * i}" for i in range(50)]
OTHERS = [f"{i} is a number" for i in range(30)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    for name, texts in {"data": TEXTS, "other": OTHERS}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "data.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    table = pyarrow.Table.from_pylist([{"text": text} for text in TEXTS])
    pyarrow.parquet.write_table(table, folder / "data.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(folder / "home")))
        prepare(
            PrepareRequest(
                [str(folder / "data.jsonl")], folder / "model", str(folder / "shards"), part_bytes=1000
            )
        )
    return folder


def config(ground: Path, source: str | list[str], **changes: Any) -> TrainConfig:
    at = [str(ground / each) for each in ([source] if isinstance(source, str) else source)]
    sizes = {"tokens_per_step": 200, "tokens_per_microbatch": 64, "max_length": 16}
    return TrainConfig(model=str(ground / "model"), data=at, **{**sizes, **changes})


def batches(config: TrainConfig) -> Callable[[Position], Any]:
    tokenizer = Tokenizer.load(config.model)
    sources = data.open_sources("pretrain", config)
    weights = [source.told.weight for source in sources]
    datasets = data.datasets("pretrain", sources, tokenizer, config).datasets
    return loader(datasets, weights, config, longest=config.max_length)


def tokens(config: TrainConfig, steps: int = 3) -> list[list[list[int]]]:
    found, position, load = [], Position(), batches(config)
    for _ in range(steps):
        batch = load(position)
        found.append([row.tokens.tolist() for row in batch.rows])
        position = batch.position
    return found


def test_files_and_shards_of_the_same_text_teach_the_same(ground: Path) -> None:
    whole = tokens(config(ground, "data.jsonl"))
    assert tokens(config(ground, "shards")) == whole
    assert tokens(config(ground, "data.parquet")) == whole
    assert tokens(config(ground, "data.txt", loader={"text_unit": "line"})) == whole


@pytest.mark.parametrize("cache_bytes", [10**9, 1000])
def test_shards_from_a_store_are_read_whole_or_in_ranges(
    ground: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_bytes: int
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    far = config(ground, "shards", loader={"cache_bytes": cache_bytes})
    far = far.model_copy(update={"data": f"file://{ground}/shards"})
    assert tokens(far) == tokens(config(ground, "shards"))
    kept = list(tmp_path.rglob("*.tar"))
    assert bool(kept) == (cache_bytes > 1000)


def test_a_job_from_shards_is_the_same_wherever_they_lie(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    (tmp_path / "moved").symlink_to(ground / "shards")
    first = config(ground, "shards", steps=2)
    moved = first.model_copy(update={"data": str(tmp_path / "moved")})
    assert jobs.plan("pretrain", first).job == jobs.plan("pretrain", moved).job
    assert (
        jobs.plan("pretrain", config(ground, "data.jsonl", steps=2)).job != jobs.plan("pretrain", first).job
    )
    seen: list[dict[str, float]] = []
    jobs.run(jobs.plan("pretrain", first), lambda step, metrics: seen.append(dict(metrics)))
    assert all(0 <= metrics["loader_share"] <= 1 for metrics in seen)
    assert all(0 <= metrics["unfilled"] < 0.05 for metrics in seen)


def test_sources_are_mixed_by_their_weights(ground: Path) -> None:
    mixed = config(ground, ["shards@3", "other.jsonl"], tokens_per_step=400)
    load, position, drawn = batches(mixed), Position(), (0, 0)
    for _ in range(20):
        position = load(position).position
        drawn = position.tokens[0], position.tokens[1]
    assert drawn[0] / sum(drawn) == pytest.approx(0.75, abs=0.01)
    digests = {
        data.digest(data.open_sources("pretrain", config(ground, sources)))
        for sources in (["shards@3", "other.jsonl"], ["shards@6", "other.jsonl@2"], ["shards", "other.jsonl"])
    }
    assert len(digests) == 2


def test_what_stands_after_the_last_at_sign_is_the_weight() -> None:
    assert weighted("a") == [Weighted("a", 1.0)]
    assert weighted(["s3://b/a@0.7", "me@home/x", "x@2@1"]) == [
        Weighted("s3://b/a", 0.7),
        Weighted("me@home/x", 1.0),
        Weighted("x@2", 1.0),
    ]
    for wrong in ("a@0", "a@-1", "@2", "a@inf"):
        with pytest.raises(ConfigError, match="above 0"):
            weighted(wrong)


def test_what_does_not_fit_together_is_an_error(ground: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="sft the records"):
        data.open_sources("sft", config(ground, "shards"))
    train_bpe(TEXTS, 280).save(tmp_path)
    other = PrepareRequest([str(ground / "data.jsonl")], tmp_path, str(tmp_path / "shards"))
    prepare(other)
    with pytest.raises(ModelError, match="another tokenizer"):
        batches(config(tmp_path, "shards").model_copy(update={"model": str(ground / "model")}))
    with pytest.raises(NotFound, match="no data at"):
        data.open_sources("pretrain", config(ground, "absent"))
