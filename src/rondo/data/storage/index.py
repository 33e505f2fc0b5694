"""`index.json`, the metadata of a folder of prepared shards, written last."""

from __future__ import annotations

import io
import json
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from rondo.base.errors import InvalidRequest
from rondo.base.storage.hashing import sha256_json

INDEX = "index.json"
LENGTHS = "lengths.npy"
VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataShard(_Part):
    name: str
    size: int
    documents: int
    tokens: int
    sha256: str


class BrokenRecord(_Part):
    where: str
    problem: str


class IndexedSource(_Part):
    name: str
    size: int
    documents: int
    tokens: int
    empty: int
    """Number of documents without tokens, which are skipped."""
    broken: int


class Index(_Part):
    format: Literal["rondo-tokens"] = "rondo-tokens"
    version: int = VERSION
    made_from: str
    """Hash of the sources, the tokenizer and the options."""
    tokenizer: str
    """`Tokenizer.digest` of the tokenizer."""
    separator: int | None
    """Token at the end of each document."""
    dtype: Literal["uint16", "uint32"]
    documents: int
    tokens: int
    longest: int
    lengths_sha256: str
    sources: list[IndexedSource]
    broken: list[BrokenRecord]
    """Broken records, the first of each part of the data; `sources` has the total counts."""
    shards: list[DataShard]

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards)

    @property
    def digest(self) -> str:
        """Hash of the training tokens, independent of their origin."""
        return sha256_json([self.tokenizer, self.dtype, *(shard.sha256 for shard in self.shards)])

    def to_json(self) -> bytes:
        return (json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + "\n").encode()


def parse_index(data: bytes, where: str) -> Index:
    try:
        found = json.loads(data)
        version = found.get("version", VERSION) if isinstance(found, dict) else VERSION
        if isinstance(version, int) and version > VERSION:
            raise InvalidRequest(
                f"{where} is of version {version}, and this Rondo reads up to {VERSION}: upgrade it.",
                param="data",
            )
        return Index.model_validate(found)
    except (ValueError, RecursionError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise InvalidRequest(
            f"{where} is not the index of prepared shards ({said}). Prepare them anew.", param="data"
        ) from error


def to_npy(lengths: NDArray[np.uint32]) -> bytes:
    out = io.BytesIO()
    np.save(out, lengths)
    return out.getvalue()
