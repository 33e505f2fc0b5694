"""Records of files, loaded into memory, for fine-tuning and small pretraining runs."""

from __future__ import annotations

from pathlib import Path

from rondo.base.errors import InvalidRequest
from rondo.base.storage.hashing import sha256_json
from rondo.base.telemetry.log import get_logger
from rondo.data.input.formats import SUFFIXES, Check, Form, read_part, unit_of, whole
from rondo.data.input.records import Record, check_record
from rondo.data.storage.places import find_files

log = get_logger(__name__)

SHOWN = 5


def read_records(
    source: Path | str, form: Form | None = None, max_broken: int = 0, check: Check = check_record
) -> list[Record]:
    """All records of a file, or of every data file of a folder in name order. Up to `max_broken` lines that fail
    `check` are skipped and logged."""
    records: list[Record] = []
    broken: list[str] = []
    for file in find_files(str(source), SUFFIXES):
        for found in read_part(whole(file), form or Form(), check):
            if found.record is not None:
                records.append(found.record)
                continue
            broken.append(f"{file.name}, {unit_of(file)} {found.number}: {found.problem}")
            if len(broken) > max_broken:
                raise InvalidRequest(too_many(broken, max_broken), param="data")
    if broken:
        log.warning("%d broken records left out: %s", len(broken), "; ".join(broken[:SHOWN]))
    if not records:
        raise InvalidRequest(f"{source} holds no records", param="data")
    return records


def too_many(broken: list[str], tolerated: int) -> str:
    if tolerated == 0:
        return broken[0]
    shown = "; ".join(broken[:SHOWN])
    return f"more than the {tolerated} broken records that are tolerated: {shown}{'; ...' * (len(broken) > SHOWN)}"


def dataset_hash(records: list[Record]) -> str:
    """A hash of the records, independent of the file or archive that contains them."""
    return sha256_json(records)
