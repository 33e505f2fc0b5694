"""Training data: files of records, prepared shards, or a mixture of both. Free of torch, so that a mistake in a file
is reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rondo.base.errors import ConfigError, InvalidRequest, ModelError
from rondo.base.storage.hashing import sha256_json
from rondo.base.storage.remote import is_remote
from rondo.data.batching.datasets import Dataset, InMemory
from rondo.data.input.formats import Form
from rondo.data.input.holdout import held_out_records
from rondo.data.input.mixture import Weighted, weighted
from rondo.data.input.records import Record
from rondo.data.input.sources import SourceRecords, dataset_hash, read_source
from rondo.data.storage.cache import Cache
from rondo.data.storage.index import Index
from rondo.data.storage.shards import Shards, is_prepared, read_index
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import Kind, TrainConfig
from rondo.train.recipes import pretrain, sft


@dataclass(frozen=True)
class TrainingSource:
    told: Weighted
    index: Index | None = None
    """Index of prepared shards."""
    read: SourceRecords = field(default_factory=SourceRecords)
    """Records of files, with their places and formats."""
    selected: Sequence[int] | None = None
    """Indices of this source's records; None: all that were read."""

    @cached_property
    def records(self) -> list[Record]:
        if self.selected is None:
            return self.read.records
        return [self.read.records[index] for index in self.selected]

    def place(self, index: int) -> str:
        """File and line of a record."""
        return self.read.place(index if self.selected is None else self.selected[index])

    @property
    def digest(self) -> str:
        return self.index.digest if self.index else dataset_hash(self.records)


@dataclass(frozen=True)
class OpenedData:
    """The data of a job, as read from its files."""

    training: list[TrainingSource]
    held_out: list[TrainingSource]


def check_given(config: TrainConfig) -> None:
    for name in ("model", "data"):
        if not getattr(config, name):
            raise ConfigError(f"which {name}? Give --{name}.", param=f"train.{name}")


def open_data(kind: Kind, config: TrainConfig) -> OpenedData:
    """Reads and validates all data of a job, without torch. Records are held out by their hash, so that equal records
    are never in both parts."""
    training = open_sources(kind, config)
    share = config.held_out_of(kind)
    if not share:
        return OpenedData(training, open_sources(kind, config, held_out=True))
    if config.evaluate.held_out and any(source.index for source in training):
        raise ConfigError(
            "prepared shards cannot be divided: prepare the held-out documents separately, and give them as "
            "train.evaluate.data",
            param="train.evaluate.held_out",
        )
    divided = [_divide(source, share) for source in training if source.index is None]
    return OpenedData(
        [train for train, _ in divided], [held_out for _, held_out in divided if held_out.records]
    )


def open_any(config: TrainConfig) -> tuple[Kind, OpenedData]:
    """The data and the kind of training that its records are for."""
    sources = [TrainingSource(told, read=_read(told, config)) for told in weighted(config.data)]
    record = sources[0].records[0]
    kind: Kind = "preference" if "rejected" in record or "label" in record else "sft"
    return ("pretrain" if "text" in record else kind), OpenedData(sources, [])


def _divide(source: TrainingSource, share: float) -> tuple[TrainingSource, TrainingSource]:
    held_out = held_out_records(source.read.records, share)
    kept = [index for index in range(len(source.read.records)) if index not in held_out]
    return replace(source, selected=kept), replace(source, selected=sorted(held_out))


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


@dataclass(frozen=True)
class Tokenized:
    """Datasets of the sources, and counts for the user."""

    datasets: list[Dataset]
    skipped: int = 0
    truncated: int = 0
    """SFT examples above the maximum length."""
    longest: int = 0
    """Tokens of the longest SFT example, before it was cut."""


def datasets(
    kind: Kind, sources: Sequence[TrainingSource], tokenizer: Tokenizer, config: TrainConfig
) -> Tokenized:
    """Datasets of SFT or pretraining. Remote prepared shards are cached on this machine if all of them fit into the
    cache."""
    if kind == "sft":
        return _sft(sources, tokenizer, config)
    afar = [source for source in sources if source.index and is_remote(source.told.source)]
    fits = sum(source.index.size for source in afar if source.index) <= config.loader.cache_bytes
    cache = Cache(config.loader.cache_bytes) if fits else None
    return Tokenized([_pretraining(source, tokenizer, cache) for source in sources])


def _sft(sources: Sequence[TrainingSource], tokenizer: Tokenizer, config: TrainConfig) -> Tokenized:
    found = [
        sft.tokenize(tokenizer, source.records, config.max_length, config.over_long, source.place)
        for source in sources
    ]
    return Tokenized(
        [InMemory(each.documents) for each in found],
        skipped=sum(each.skipped for each in found),
        truncated=sum(each.truncated for each in found),
        longest=max(each.longest for each in found),
    )


def _open(kind: Kind, told: Weighted, config: TrainConfig) -> TrainingSource:
    if not is_prepared(told.source):
        source = TrainingSource(told, read=_read(told, config))
        _check_kind(kind, config, source)
        return source
    if kind != "pretrain":
        raise InvalidRequest(
            f"{told.source} is prepared: it holds tokens, and no longer says which of them are the assistant's. "
            f"Give {kind} the records it was made from.",
            param="train.data",
        )
    return TrainingSource(told, read_index(told.source))


def _read(told: Weighted, config: TrainConfig) -> SourceRecords:
    own = config.loader
    form = Form(own.fields, own.text_unit, None if own.format == "auto" else own.format)
    return read_source(told.source, form, own.max_broken)


def _check_kind(kind: Kind, config: TrainConfig, source: TrainingSource) -> None:
    """Rejects records that the recipe cannot learn from; rejected answers must not be learned like good ones."""
    labels = kind == "preference" and config.preference.loss == "kto"
    for index, record in enumerate(source.records):
        pair, label = "rejected" in record, record.get("label")
        if kind in ("pretrain", "sft"):
            problem = (
                "the record has an answer that was judged to be bad: use `rondo train preference`"
                if pair or label is False
                else ""
            )
        elif pair or (labels and label is not None):
            problem = ""
        elif label is not None:
            problem = (
                'the record has a "label", but no "chosen" and "rejected": labelled answers are for '
                "`rondo train preference --train.preference.loss=kto`"
            )
        else:
            wanted = '"chosen" and "rejected"' + (', or a "completion" with a "label"' if labels else "")
            problem = f"the record has no {wanted}, which {kind} training needs: use `rondo train sft`"
        if problem:
            found = f" (detected format: {source.read.format})" if source.read.formats else ""
            raise InvalidRequest(f"{source.place(index)}: {problem}{found}", param="train.data")


def _pretraining(source: TrainingSource, tokenizer: Tokenizer, cache: Cache | None) -> Dataset:
    if source.index is None:
        return pretrain.dataset(pretrain.documents(tokenizer, source.records))
    if source.index.tokenizer != tokenizer.digest:
        raise ModelError(
            f"{source.told.source} was prepared with another tokenizer than the model's: prepare it anew with "
            "--tokenizer and this model.",
            param="train.data",
        )
    return Shards(source.told.source, source.index, cache)
