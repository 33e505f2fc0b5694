"""Tuned work splits of products among threads and blocks on this machine: a table for this process, and a file under
`RONDO_HOME` for later ones. A split does not change the order of a sum, so results are bitwise equal."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rondo.base.errors import RondoError
from rondo.base.storage.files import atomic_write
from rondo.base.storage.home import cache_dir
from rondo.base.telemetry.log import get_logger
from rondo.ops.native.build.build import library
from rondo.ops.native.build.level import cpu_model
from rondo.ops.native.build.numbers import SHORT

log = get_logger(__name__)

FEWS = (8, 12, 16, 24, 32)
COLUMNS = (128, 256, 512, 1024)


class WorkSplit(NamedTuple):
    """Work split of a product. Threads share columns if there are fewer than `few` rows a thread, else rows. If results
    are rounded, `columns` of them are computed at a time."""

    few: int = 12
    columns: int = 256


AS_BUILT = WorkSplit()


class Product(NamedTuple):
    """A product with a weight [width, inputs]."""

    dtype: torch.dtype
    width: int
    inputs: int
    threads: int

    @property
    def name(self) -> str:
        return f"{SHORT[self.dtype]} {self.width} x {self.inputs}, {self.threads} thread{'s' * (self.threads > 1)}"


class TunedSplit(BaseModel):
    """The best split of a product, and its speedup over the default: at the row counts for which `few` matters, and at
    many rows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    few: Annotated[int, Field(ge=min(FEWS), le=max(FEWS))]
    columns: Annotated[int, Field(ge=min(COLUMNS), le=max(COLUMNS), multiple_of=16)]
    times_with_few_rows: Annotated[float, Field(ge=1, le=100)]
    times_with_many_rows: Annotated[float, Field(ge=1, le=100)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    machine: str
    products: dict[str, TunedSplit]


_cuts: dict[tuple[torch.dtype, int, int, int], WorkSplit] = {}


def cut_of(dtype: torch.dtype, width: int, inputs: int, threads: int) -> WorkSplit:
    return _cuts.get((dtype, width, inputs, threads), AS_BUILT)


def use(product: Product, found: TunedSplit) -> None:
    """Applies a result in this process."""
    _cuts[product] = WorkSplit(found.few, found.columns)


def machine() -> str:
    """The CPU, and the library's name, which contains a hash of level, kernels and compiler."""
    compiled = library("linear")
    assert compiled is not None
    return f"{cpu_model()}, {Path(compiled._name).stem}"


def path() -> Path:
    digest = hashlib.sha256(machine().encode()).hexdigest()[:16]
    return cache_dir() / "tuned" / f"linear-{digest}.json"


def read() -> dict[str, TunedSplit]:
    """Stored results of this machine, by the products' names."""
    file = path()
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("what was tuned cannot be read, and is tried again", extra={"why": str(error)})
        return {}
    try:
        said = _File.model_validate_json(raw)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        log.warning("what was tuned is not whole, and is tried again", extra={"file": str(file), "why": why})
        return {}
    if said.machine != machine():
        log.warning("what was tuned is of another machine, and is tried again", extra={"file": str(file)})
        return {}
    return said.products


def add(found: dict[str, TunedSplit]) -> None:
    """Adds results to the file, atomically. Of two concurrent writers, one may lose its newest results."""
    text = _File(machine=machine(), products=read() | found).model_dump_json(indent=1)
    try:
        atomic_write(path(), text)
    except RondoError as error:
        log.warning("what was tuned could not be kept", extra={"why": str(error)})
