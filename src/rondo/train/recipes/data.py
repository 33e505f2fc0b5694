"""Training data: files of records, prepared shards, or a mixture of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rondo.base.errors import InvalidRequest, ModelError
from rondo.base.storage.hashing import sha256_json
from rondo.data.batching.datasets import Dataset, InMemory
from rondo.data.input.formats import Form
from rondo.data.input.mixture import Weighted, weighted
from rondo.data.input.records import Record
from rondo.data.input.sources import dataset_hash, read_records
from rondo.data.storage.cache import Cache
from rondo.data.storage.index import Index
from rondo.data.storage.remote import is_remote
from rondo.data.storage.shards import Shards, is_prepared, read_index
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import Kind, TrainConfig
from rondo.train.recipes import pretrain, sft


@dataclass(frozen=True)
class TrainingSource:
    told: Weighted
    index: Index | None = None
    """Index of prepared shards."""
    records: list[Record] = field(default_factory=list)
    """Records of files."""

    @property
    def digest(self) -> str:
        return self.index.digest if self.index else dataset_hash(self.records)


def open_sources(kind: Kind, config: TrainConfig, held_out: bool = False) -> list[TrainingSource]:
    """Sources for training, or for evaluation if `held_out`."""
    told = config.evaluate.data if held_out else config.data
    return [_open(kind, each, config) for each in weighted(told)] if told else []


def digest(sources: Sequence[TrainingSource]) -> str:
    """Hash of the training data, independent of its name and location."""
    if len(sources) == 1:
        return sources[0].digest
    total = sum(source.told.weight for source in sources)
    return sha256_json([[source.digest, source.told.weight / total] for source in sources])


def datasets(
    kind: Kind, sources: Sequence[TrainingSource], tokenizer: Tokenizer, config: TrainConfig
) -> list[Dataset]:
    """Datasets of the sources. Remote prepared shards are cached on this machine if all of them fit into the cache."""
    afar = [source for source in sources if source.index and is_remote(source.told.source)]
    fits = sum(source.index.size for source in afar if source.index) <= config.loader.cache_bytes
    cache = Cache(config.loader.cache_bytes) if fits else None
    return [_dataset(kind, source, tokenizer, config, cache) for source in sources]


def _open(kind: Kind, told: Weighted, config: TrainConfig) -> TrainingSource:
    if not is_prepared(told.source):
        form = Form(config.loader.fields, config.loader.text_unit)
        records = read_records(told.source, form, config.loader.max_broken)
        if kind in ("pretrain", "sft"):
            _refuse_judged(records)
        return TrainingSource(told, records=records)
    if kind != "pretrain":
        raise InvalidRequest(
            f"{told.source} is prepared: it holds tokens, and no longer says which of them are the assistant's. "
            f"Give {kind} the records it was made from.",
            param="train.data",
        )
    return TrainingSource(told, read_index(told.source))


def _refuse_judged(records: Sequence[Record]) -> None:
    """Rejects records with bad answers: these must not be learned like good ones."""
    for number, record in enumerate(records, 1):
        if "rejected" in record or record.get("label") is False:
            raise InvalidRequest(
                f"record {number} holds an answer that was found bad: such data are for `rondo train preference`",
                param="train.data",
            )


def _dataset(
    kind: Kind, source: TrainingSource, tokenizer: Tokenizer, config: TrainConfig, cache: Cache | None
) -> Dataset:
    if source.index is None:
        if kind == "sft":
            return InMemory(sft.examples(tokenizer, source.records, config.max_length))
        return pretrain.dataset(pretrain.documents(tokenizer, source.records))
    if source.index.tokenizer != tokenizer.digest:
        raise ModelError(
            f"{source.told.source} was prepared with another tokenizer than the model's: prepare it anew with "
            "--tokenizer and this model.",
            param="train.data",
        )
    return Shards(source.told.source, source.index, cache)
