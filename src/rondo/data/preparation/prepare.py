"""Tokenization of text sources into shards by several processes, resumable after an interruption.

The data are cut into parts by size only. Each part becomes shards of its own, and a note records its completion, so the
result is bitwise equal for any number of workers and interruptions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rondo.base.errors import Conflict, InvalidRequest
from rondo.base.lock import lock, open_lock
from rondo.base.storage.files import storage_error
from rondo.base.storage.hashing import sha256_json
from rondo.base.storage.home import cache_dir
from rondo.data.input.formats import SUFFIXES, FilePart, Form, lines_before, parts_of, unit_of
from rondo.data.input.sources import too_many
from rondo.data.preparation.pool import PoolTask, run_tasks
from rondo.data.preparation.worker import LENGTHS_NOTE, NOTE, WorkerSetup, part_name
from rondo.data.storage.index import (
    INDEX,
    LENGTHS,
    VERSION,
    BrokenRecord,
    DataShard,
    Index,
    IndexedSource,
    parse_index,
    to_npy,
)
from rondo.data.storage.places import LocalFolder, OutputFolder, find_files, folder_of
from rondo.text.tokenizer import Tokenizer

RECORDS = ".preparing"
MADE_FROM = "made_from"
_SHARD = re.compile(r"shard-\d+-\d+\.tar")
WORKER = "rondo.data.preparation.worker"


@dataclass(frozen=True)
class PrepareRequest:
    sources: Sequence[str]
    tokenizer: Path
    out: str
    workers: int = 1
    form: Form = field(default_factory=Form)
    close: bool = True
    """Whether the end-of-text token is appended to each document."""
    max_broken: int = 0
    part_bytes: int = 64 << 20
    shard_bytes: int = 256 << 20
    replace: bool = False


@dataclass(frozen=True)
class Progress:
    bytes: int
    of_bytes: int
    documents: int
    tokens: int
    tokens_per_second: float
    """Rate of this process; tokens of earlier runs count in `tokens` only."""
    broken: int


Report = Callable[[Progress], None]


def prepare(request: PrepareRequest, report: Report = lambda progress: None) -> Index:
    """Writes the shards, and then their index. Parts completed by an earlier run of the same preparation are
    skipped."""
    tokenizer = Tokenizer.load(request.tokenizer)
    plan = _plan(request, tokenizer)
    out = folder_of(request.out)
    with _alone(out) as stage:
        index = _begin(request, plan, out)
        if index is None:
            work = _Work(request, plan, out, report)
            work.run(_setup(request, tokenizer, stage))
            index = _index(request, plan, out, tokenizer)
            out.write(INDEX, index.to_json())
        out.remove(RECORDS)
    return index


@dataclass(frozen=True)
class _Plan:
    parts: list[FilePart]
    source_of: list[int]
    """The number of each part's source."""
    digest: str


def _plan(request: PrepareRequest, tokenizer: Tokenizer) -> _Plan:
    parts: list[FilePart] = []
    source_of: list[int] = []
    for number, source in enumerate(request.sources):
        for file in find_files(source, SUFFIXES):
            own = parts_of(file, request.form, request.part_bytes)
            parts += own
            source_of += [number] * len(own)
    if not any(part.size for part in parts):
        raise InvalidRequest(f"{', '.join(request.sources)}: the data set is empty", param="data")
    made_from = {
        "version": VERSION,
        "tokenizer": tokenizer.digest,
        "form": asdict(request.form),
        "close": request.close,
        "shard_bytes": request.shard_bytes,
        "parts": [asdict(part) for part in parts],
        "source_of": source_of,
    }
    return _Plan(parts, source_of, sha256_json(made_from))


@contextlib.contextmanager
def _alone(out: OutputFolder) -> Iterator[Path]:
    """Lock that permits one process at a time to prepare into one folder. Yields a folder for its unfinished files."""
    place = str(out.path) if isinstance(out, LocalFolder) else out.name
    own = cache_dir() / "preparing" / hashlib.sha256(place.encode()).hexdigest()[:16]
    try:
        own.mkdir(parents=True, exist_ok=True)
        handle = open_lock(own / "lock")
    except OSError as error:
        raise storage_error(own, error) from error
    if not lock(handle):
        os.close(handle)
        raise Conflict(f"Another process is preparing data into {out.name}. Wait until it has ended.")
    # Renaming requires the same file system.
    stage = out.path / RECORDS / "unfinished" if isinstance(out, LocalFolder) else own / "unfinished"
    try:
        shutil.rmtree(stage, ignore_errors=True)
        yield stage / str(os.getpid())
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(handle)


def _begin(request: PrepareRequest, plan: _Plan, out: OutputFolder) -> Index | None:
    """The index, if everything is done already; else claims the folder for this preparation."""
    index = out.read(INDEX)
    if index is not None and not request.replace:
        found = parse_index(index, f"{out.name}/{INDEX}")
        if found.made_from == plan.digest:
            return found
    begun = out.read(f"{RECORDS}/{MADE_FROM}")
    if index is None and begun == plan.digest.encode():
        return None
    present = out.names()
    if present and not request.replace:
        what = "prepared from other data, or with other options" if index or begun else "not empty"
        raise Conflict(
            f"{out.name} is {what}. Choose another --out{', or --replace it' * bool(index or begun)}."
        )
    ours = [name for name in present if name in (INDEX, LENGTHS, RECORDS) or _SHARD.fullmatch(name)]
    if len(ours) < len(present):
        raise Conflict(f"{out.name} holds other things than prepared data. Choose another --out.")
    for name in sorted(ours, key=lambda name: name != INDEX):
        out.remove(name)
    out.write(f"{RECORDS}/{MADE_FROM}", plan.digest.encode())
    return None


def _setup(request: PrepareRequest, tokenizer: Tokenizer, stage: Path) -> dict[str, Any]:
    try:
        stage.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(stage, error) from error
    setup = WorkerSetup(
        tokenizer=str(request.tokenizer),
        out=request.out,
        records=RECORDS,
        stage=str(stage),
        form=asdict(request.form),
        close=request.close,
        dtype=_dtype(tokenizer),
        shard_bytes=request.shard_bytes,
        max_broken=request.max_broken,
    )
    return asdict(setup)


def _dtype(tokenizer: Tokenizer) -> Literal["uint16", "uint32"]:
    return "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"


class _Work:
    """The remaining parts, and the statistics of all parts."""

    def __init__(self, request: PrepareRequest, plan: _Plan, out: OutputFolder, report: Report) -> None:
        self._request, self._plan, self._report = request, plan, report
        self.notes = _notes(out)
        self._now: dict[int, Sequence[int]] = {
            number: _counts(note["tally"]) for number, note in self.notes.items()
        }
        self._before = sum(counts[2] for counts in self._now.values())
        self._listed = {number: note["tally"]["listed"] for number, note in self.notes.items()}
        self._began = time.monotonic()

    def run(self, setup: dict[str, Any]) -> None:
        tasks = [
            PoolTask(
                number,
                f"{part.file.name} (bytes {part.begin} to {part.end})",
                {"number": number, **asdict(part)},
            )
            for number, part in enumerate(self._plan.parts)
            if number not in self.notes
        ]
        self._check()
        run_tasks(WORKER, setup, tasks, self._request.workers, self._heard)

    def _heard(self, task: PoolTask, what: str, fact: Any) -> None:
        if what == "done":
            self._listed[task.number] = fact["listed"]
            fact = _counts(fact)
        self._now[task.number] = fact
        self._check(final=what == "done")
        self._report(self._progress())

    def _check(self, final: bool = True) -> None:
        """Raises if too many records are broken. Only completed parts (`final`) list them."""
        if final and sum(counts[3] for counts in self._now.values()) > self._request.max_broken:
            raise InvalidRequest(too_many(self._where(), self._request.max_broken), param="data")

    def _where(self) -> list[str]:
        found = []
        for number, listed in sorted(self._listed.items()):
            found += [
                f"{broken.where}: {broken.problem}" for broken in located(self._plan.parts[number], listed)
            ]
            if len(found) > self._request.max_broken:
                break
        return found

    def _progress(self) -> Progress:
        counts = self._now.values()
        tokens = sum(each[2] for each in counts)
        return Progress(
            bytes=sum(each[0] for each in counts),
            of_bytes=sum(part.size for part in self._plan.parts),
            documents=sum(each[1] for each in counts),
            tokens=tokens,
            tokens_per_second=(tokens - self._before) / max(time.monotonic() - self._began, 1e-9),
            broken=sum(each[3] for each in counts),
        )


def _counts(tally: dict[str, Any]) -> list[int]:
    return [tally[name] for name in ("bytes", "documents", "tokens", "broken")]


def _notes(out: OutputFolder) -> dict[int, dict[str, Any]]:
    """Notes of the completed parts, by their numbers."""
    return {
        int(name[len("part-") : -len(NOTE)]): json.loads(data)
        for name, data in out.read_all(RECORDS).items()
        if name.endswith(NOTE)
    }


def located(part: FilePart, listed: Sequence[Sequence[Any]]) -> list[BrokenRecord]:
    """Converts record numbers within a part to numbers within its file."""
    before = lines_before(part) if listed else 0
    unit = unit_of(part.file)
    return [
        BrokenRecord(where=f"{part.file.name}, {unit} {before + int(number)}", problem=str(problem))
        for number, problem in listed
    ]


def _index(request: PrepareRequest, plan: _Plan, out: OutputFolder, tokenizer: Tokenizer) -> Index:
    written = out.read_all(RECORDS)
    parts = [part_name(number) for number in range(len(plan.parts))]
    notes = [json.loads(written[part + NOTE]) for part in parts]
    lengths = np.frombuffer(b"".join(written[part + LENGTHS_NOTE] for part in parts), np.uint32)
    shards = [DataShard(**shard) for note in notes for shard in note["shards"]]
    if not len(lengths):
        raise InvalidRequest(
            f"{', '.join(request.sources)}: the data set is empty: no document has a token", param="data"
        )
    assert len(lengths) == sum(shard.documents for shard in shards)
    listed = to_npy(lengths)
    out.write(LENGTHS, listed)
    return Index(
        made_from=plan.digest,
        tokenizer=tokenizer.digest,
        separator=tokenizer.eos_ids[0] if request.close and tokenizer.eos_ids else None,
        dtype=_dtype(tokenizer),
        documents=len(lengths),
        tokens=int(lengths.sum(dtype=np.int64)),
        longest=int(lengths.max()),
        lengths_sha256=hashlib.sha256(listed).hexdigest(),
        sources=[_source(request, plan, notes, number) for number in range(len(request.sources))],
        broken=[
            broken
            for number, part in enumerate(plan.parts)
            for broken in located(part, notes[number]["tally"]["listed"])
        ],
        shards=shards,
    )


def _source(
    request: PrepareRequest, plan: _Plan, notes: Sequence[dict[str, Any]], source: int
) -> IndexedSource:
    own = [number for number, of in enumerate(plan.source_of) if of == source]
    tallies = [notes[number]["tally"] for number in own]
    return IndexedSource(
        name=request.sources[source],
        size=sum(plan.parts[number].size for number in own),
        documents=sum(tally["documents"] for tally in tallies),
        tokens=sum(tally["tokens"] for tally in tallies),
        empty=sum(tally["empty"] for tally in tallies),
        broken=sum(tally["broken"] for tally in tallies),
    )
