"""Records of files, loaded into memory, for fine-tuning and small pretraining runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rondo.base.errors import InvalidRequest
from rondo.base.storage.hashing import sha256_json
from rondo.base.telemetry.log import get_logger
from rondo.data.input.conversion import RecordConverter
from rondo.data.input.detection import DetectedFormat
from rondo.data.input.formats import SUFFIXES, Convert, Form, place_of, read_part, whole
from rondo.data.input.records import Record
from rondo.data.storage.places import SourceFile, find_files

log = get_logger(__name__)

SHOWN = 5


@dataclass
class SourceRecords:
    """Records of a source, with their places in its files."""

    records: list[Record] = field(default_factory=list)
    formats: dict[str, DetectedFormat] = field(default_factory=dict)
    """The format of each file with records that have fields."""
    broken: list[str] = field(default_factory=list)
    """Place and problem of the records that were left out."""
    _files: list[SourceFile] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)
    """Index of the first record of each file."""
    _numbers: list[tuple[int, int]] = field(default_factory=list)
    """Number and line of each record."""

    def place(self, index: int) -> str:
        """File and line of a record."""
        file = self._files[bisect_right(self._firsts, index) - 1]
        return place_of(file, *self._numbers[index])

    def begin(self, file: SourceFile) -> None:
        self._files.append(file)
        self._firsts.append(len(self.records))

    def add(self, record: Record, number: int, line: int) -> None:
        self.records.append(record)
        self._numbers.append((number, line))

    @property
    def format(self) -> str:
        """The formats of the files, each once, as "Alpaca: instruction, output"."""
        return "; ".join(dict.fromkeys(map(str, self.formats.values()))) or "plain text"


def read_source(
    source: Path | str, form: Form | None = None, max_broken: int = 0, convert: Convert | None = None
) -> SourceRecords:
    """All records of a file, or of every data file of a folder in name order. Up to `max_broken` records with a problem
    are skipped and logged. The format is detected in each file, unless `convert` is given."""
    form, found = form or Form(), SourceRecords()
    for file in find_files(str(source), SUFFIXES):
        found.begin(file)
        own = RecordConverter(form.format)
        for each in read_part(whole(file), form, convert or own):
            if each.record is not None:
                found.add(each.record, each.number, each.line)
                continue
            found.broken.append(f"{place_of(file, each.number, each.line)}: {each.problem}")
            if len(found.broken) > max_broken:
                raise InvalidRequest(too_many(found.broken, max_broken), param="data")
        if own.detected:
            found.formats[file.name] = own.detected
    if found.broken:
        log.warning("%d broken records left out: %s", len(found.broken), "; ".join(found.broken[:SHOWN]))
    if not found.records:
        raise InvalidRequest(f"{source} holds no records", param="data")
    return found


def read_records(source: Path | str, form: Form | None = None, max_broken: int = 0) -> list[Record]:
    return read_source(source, form, max_broken).records


def too_many(broken: Sequence[str], tolerated: int) -> str:
    if tolerated == 0:
        return broken[0]
    shown = "; ".join(broken[:SHOWN])
    return f"more than the {tolerated} broken records that are tolerated: {shown}{'; ...' * (len(broken) > SHOWN)}"


def dataset_hash(records: list[Record]) -> str:
    """A hash of the records, independent of the file or archive that contains them."""
    return sha256_json(records)
