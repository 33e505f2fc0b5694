"""Worker process of `prepare.py` that tokenizes parts of the data, one after another.

It reads tasks from standard input and writes messages to standard output, both as JSON lines. It exits when either is
closed, so it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rondo.base.errors import InvalidRequest, RondoError
from rondo.base.storage.files import storage_error
from rondo.data.input.formats import FilePart, Form, ParsedRecord, read_part
from rondo.data.input.texts import closed, text_of
from rondo.data.storage.index import DataShard
from rondo.data.storage.places import OutputFolder, SourceFile, folder_of
from rondo.data.storage.tar import ShardWriter
from rondo.text.tokenizer import Tokenizer

BEAT_SECONDS = 0.5
BATCH_DOCUMENTS, BATCH_CHARACTERS = 512, 1 << 20
NOTE, LENGTHS_NOTE = ".json", ".lengths"
LISTED = 100
"""Maximum number of broken records listed for a part."""


@dataclass(frozen=True)
class WorkerSetup:
    tokenizer: str
    out: str
    records: str
    """Folder in `out` for the notes of completed parts."""
    stage: str
    """Folder on the local disk for unfinished files."""
    form: dict[str, Any]
    close: bool
    dtype: str
    shard_bytes: int
    max_broken: int


@dataclass
class PartProgress:
    """Statistics of a part so far."""

    bytes: int = 0
    lines: int = 0
    documents: int = 0
    tokens: int = 0
    empty: int = 0
    broken: int = 0
    listed: list[tuple[int, str]] = field(default_factory=list)

    def break_(self, number: int, problem: str) -> None:
        self.broken += 1
        if len(self.listed) < LISTED:
            self.listed.append((number, problem))


def part_name(number: int) -> str:
    return f"part-{number:06d}"


class Tokenizing:
    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._tokenizer = Tokenizer.load(setup.tokenizer)
        self._form = Form(**setup.form)
        self._out: OutputFolder = folder_of(setup.out)

    def run(self, number: int, part: FilePart, tally: PartProgress) -> None:
        """Writes the part's shards, and then the note of their completion; no note if too many records are broken."""
        shards: list[DataShard] = []
        lengths: list[int] = []
        writer: ShardWriter | None = None
        for ids in self._documents(part, tally):
            if writer is None:
                writer = self._shard(number, len(shards))
            writer.add(ids)
            if writer.bytes >= self._setup.shard_bytes:
                shards.append(self._finish(writer, lengths))
                writer = None
        if writer is not None:
            shards.append(self._finish(writer, lengths))
        if tally.broken > self._setup.max_broken:
            return
        note = {"tally": asdict(tally), "shards": [shard.model_dump() for shard in shards]}
        where = f"{self._setup.records}/{part_name(number)}"
        self._out.write(where + LENGTHS_NOTE, np.asarray(lengths, np.uint32).tobytes())
        self._out.write(where + NOTE, json.dumps(note).encode())

    def _shard(self, number: int, nth: int) -> ShardWriter:
        stem = f"{number:06d}-{nth:03d}"
        return ShardWriter(Path(self._setup.stage) / f"shard-{stem}.tar", stem, self._setup.dtype)

    def _finish(self, writer: ShardWriter, lengths: list[int]) -> DataShard:
        sha256 = writer.close()
        self._out.put(writer.path.name, writer.path)
        lengths += writer.lengths
        return DataShard(
            name=writer.path.name,
            size=writer.bytes,
            documents=len(writer.lengths),
            tokens=sum(writer.lengths),
            sha256=sha256,
        )

    def _documents(self, part: FilePart, tally: PartProgress) -> Iterator[list[int]]:
        for batch in _batches(self._texts(part, tally)):
            for ids in self._encode(batch, tally):
                tally.documents += 1
                tally.tokens += len(ids)
                yield ids
            if tally.broken > self._setup.max_broken:
                return

    def _texts(self, part: FilePart, tally: PartProgress) -> Iterator[tuple[int, str]]:
        for found in read_part(part, self._form):
            tally.bytes, tally.lines = found.done, found.number
            text = self._text(found, tally)
            if text:
                yield found.number, text
            elif text is not None:
                tally.empty += 1

    def _text(self, found: ParsedRecord, tally: PartProgress) -> str | None:
        problem = found.problem
        if found.record is not None:
            try:
                return text_of(self._tokenizer, found.record)
            except InvalidRequest as error:
                problem = error.message
        tally.break_(found.number, problem)
        return None

    def _encode(self, batch: list[tuple[int, str]], tally: PartProgress) -> Iterator[list[int]]:
        try:
            encoded = self._tokenizer.encode_batch([text for _, text in batch])
        except InvalidRequest:
            for number, text in batch:
                try:
                    yield self._close(self._tokenizer.encode(text))
                except InvalidRequest as error:
                    tally.break_(number, error.message)
        else:
            yield from map(self._close, encoded)

    def _close(self, ids: list[int]) -> list[int]:
        return closed(self._tokenizer, ids) if self._setup.close else ids


def _batches(texts: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    batch, size = list[tuple[int, str]](), 0
    for number, text in texts:
        batch.append((number, text))
        size += len(text)
        if len(batch) == BATCH_DOCUMENTS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Voice:
    """Reports progress every half second, which also shows that the process is alive."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # output of libraries must not mix with the messages
        self._lock = threading.Lock()
        self.tally = PartProgress()
        threading.Thread(target=self._beat, daemon=True).start()

    def say(self, what: str, fact: object) -> None:
        with self._lock:
            try:
                self._out.write(json.dumps({what: fact}) + "\n")
                self._out.flush()
            except OSError:
                os._exit(1)  # the parent is gone

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            tally = self.tally
            self.say("now", [tally.bytes, tally.documents, tally.tokens, tally.broken])


def main() -> None:
    voice = _Voice()
    try:
        work = Tokenizing(WorkerSetup(**json.loads(sys.stdin.readline())))
        for line in sys.stdin:
            task = json.loads(line)
            part = FilePart(SourceFile(**task["file"]), task["begin"], task["end"], task["size"])
            voice.tally = PartProgress()
            work.run(task["number"], part, voice.tally)
            voice.say("done", asdict(voice.tally))
    except RondoError as error:
        voice.say("error", [type(error).__name__, error.message, error.param, error.code])
    except OSError as error:
        told = storage_error(str(error.filename or "a shard"), error)
        voice.say("error", [type(told).__name__, told.message, told.param, told.code])


if __name__ == "__main__":
    main()
