"""Models that an engine could serve, as the supervisor needs them. `rondo up` supplies the implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Loadable:
    """A model of this machine. `source` is the MODEL of `rondo serve`, empty for an adapter without merged weights."""

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    """Other names that requests may use, such as the hash of a named job."""
    created: int = 0
    adapter: str | None = None
    """Folder of the adapter, if a job trained one."""
    base: str | None = None
    """`source` of the adapter's base model."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class MemoryNeed:
    """Estimated memory of an engine in bytes."""

    weights: int
    cache: int
    overhead: int
    flags: tuple[str, ...] = ()
    """Flags of `rondo serve` under which the estimate holds."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.overhead


class Catalog(Protocol):
    def models(self, fresh: bool = False) -> Sequence[Loadable]:
        """All models of this machine; the list may be some seconds old unless `fresh`."""

    def need(self, source: str) -> MemoryNeed:
        """Memory of an engine for the model."""
