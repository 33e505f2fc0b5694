"""Division of records into a training and a held-out part."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.base.storage.hashing import sha256_json
from rondo.data.input.records import Record


def held_out_records(records: Sequence[Record], share: float) -> set[int]:
    """Indices of the held-out records: those with the smallest hashes, independent of their order. Equal records are
    in the same part. Data with fewer different records than 1 / `share` are not divided."""
    hashes = [sha256_json(record) for record in records]
    different = sorted(set(hashes))
    held_out = set(different[: int(len(different) * share)])
    return {index for index, each in enumerate(hashes) if each in held_out}
