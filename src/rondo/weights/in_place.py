"""Pushing without copying: learner and engine in one process hold the very same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.weights.checksum import checksum
from rondo.weights.directory import Directory, Published

Shards = Callable[[], Iterable[tuple[str, Tensor]]]


class UpdatableEngine(Protocol):
    def start_weight_update(self) -> None: ...

    def finish_weight_update(self, version: int) -> None: ...


@dataclass(frozen=True)
class Receiver:
    name: str
    engine: UpdatableEngine
    shards: Shards


@dataclass
class InPlace:
    """One push is `register`, `plan`, (the tensors change), `push`, `finish`; `update` does them around a block.

    Between `plan` and `finish` the receivers are paused. If something fails in between they stay paused: a half
    written version is never served.
    """

    model: str
    shards: Shards
    directory: Directory
    owner: str = "learner"
    verify: bool = False
    """Whether a version gets a checksum: nothing is copied, so that only a defect of the memory could change it."""
    _version: int = 0
    _receivers: list[Receiver] = field(default_factory=list)
    _kept: int | None = None

    def register(self, version: int, shards: Shards | None = None) -> None:
        self._version = version
        self.shards = shards or self.shards

    def plan(self, receivers: Iterable[Receiver]) -> None:
        """Checks that there is nothing to move, and pauses the receivers."""
        self._receivers = list(receivers)
        own = dict(self.shards())
        for receiver in self._receivers:
            theirs = dict(receiver.shards())
            apart = sorted(own.keys() ^ theirs.keys()) or [n for n in own if not _same(own[n], theirs[n])]
            if apart:
                raise ConfigError(
                    f"{receiver.name} does not share its tensors with {self.owner} ({', '.join(apart[:3])}): "
                    "give both the same model, or choose another weight transport"
                )
        for receiver in self._receivers:
            receiver.engine.start_weight_update()

    def push(self) -> int:
        """The bytes moved: none."""
        return 0

    def finish(self) -> str:
        """Publishes the version and lets the receivers go on with it. Returns its checksum, if `verify` is set."""
        tensors = list(self.shards())
        total = checksum(tensors) if self.verify else ""
        nbytes = sum(tensor.nbytes for _, tensor in tensors)
        entry = Published(self.model, self._version, self.owner, total, nbytes, len(tensors))
        self.directory.publish(entry)
        if self._kept is not None and self._kept != self._version:
            self.directory.withdraw(self.model, self._kept, self.owner)
        self._kept = self._version
        for receiver in self._receivers:
            receiver.engine.finish_weight_update(self._version)
        return total

    @contextmanager
    def update(self, version: int, receivers: Iterable[Receiver]) -> Iterator[None]:
        """The block may write to the tensors; afterwards all receivers have `version`."""
        self.register(version)
        self.plan(receivers)
        yield
        self.push()
        self.finish()


def _same(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
    )
