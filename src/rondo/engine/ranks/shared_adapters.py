"""Adapters of a tensor-parallel model.

Rank 0 manages names, versions and the limit of loaded adapters. The other ranks hold weights by number and release them
after rank 0 has. Every rank reads the whole adapter, so that all can verify that they read the same content, and
retains its own columns. An adapter is loaded only if all ranks have read it.
"""

from __future__ import annotations

import weakref
from pathlib import Path

from rondo.base.errors import ModelError
from rondo.engine.ranks.outbox import Outbox
from rondo.engine.ranks.ranks import AdapterRead
from rondo.engine.weights.adapter_reader import AdapterReader
from rondo.models.adapters.mixed import AdapterWeights
from rondo.parallel.tensor.shard import ShardedDecoder


class OwnColumns(AdapterReader):
    """Adapter reader of any rank: retains the rank's own columns."""

    def __init__(self, model: ShardedDecoder, max_rank: int) -> None:
        super().__init__(model, max_rank)
        self._columns = model.split.columns()

    def read(self, folder: Path) -> tuple[AdapterWeights, str]:
        served, content = super().read(folder)
        served.narrow(self.sites, self._columns)
        return served, content


class SharedReader(OwnColumns):
    """Adapter reader of rank 0: the other ranks read the adapter too."""

    def __init__(self, model: ShardedDecoder, max_rank: int, outbox: Outbox) -> None:
        super().__init__(model, max_rank)
        self._outbox = outbox
        self._numbers: weakref.WeakKeyDictionary[AdapterWeights, int] = weakref.WeakKeyDictionary()

    def number(self, served: AdapterWeights) -> int:
        """The adapter's number on the other ranks."""
        return self._numbers[served]

    def read(self, folder: Path) -> tuple[AdapterWeights, str]:
        number = self._outbox.read_adapter(folder)
        try:
            try:
                served, content = super().read(folder)
            finally:
                answers = self._outbox.answers(number)
            _check_alike(folder, content, answers)
        except BaseException:
            self._outbox.forget_adapter(number)
            raise
        # The other ranks hold the adapter as long as this rank does.
        weakref.finalize(served, self._outbox.forget_adapter, number).atexit = False
        self._numbers[served] = number
        return served, content


def _check_alike(folder: Path, content: str, answers: list[AdapterRead]) -> None:
    size = 1 + len(answers)
    for answer in answers:
        if answer.refused:
            raise ModelError(
                f"rank {answer.rank} of {size} could not read the adapter, so none has it: {answer.refused}"
            )
        if answer.content != content:
            raise ModelError(
                f"{folder}: rank {answer.rank} of {size} read other bytes than rank 0, so the adapter was not loaded. "
                "Load it again when no process writes to it."
            )
