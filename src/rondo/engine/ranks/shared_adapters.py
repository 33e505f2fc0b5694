"""Adapters of a model that is divided among ranks.

Rank 0 has the names, the versions and the bound on how many are loaded. The others have weights under numbers, and
let go of them when rank 0 has. Every rank reads the whole of an adapter, so that all can say whether it is the same
for each, and keeps its columns. It is loaded when all have read it; else none of them has it.
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
    """Any rank's."""

    def __init__(self, model: ShardedDecoder, max_rank: int) -> None:
        super().__init__(model, max_rank)
        self._columns = model.split.columns()

    def read(self, folder: Path) -> tuple[AdapterWeights, str]:
        served, content = super().read(folder)
        served.narrow(self.sites, self._columns)
        return served, content


class SharedReader(OwnColumns):
    """Rank 0's."""

    def __init__(self, model: ShardedDecoder, max_rank: int, outbox: Outbox) -> None:
        super().__init__(model, max_rank)
        self._outbox = outbox
        self._numbers: weakref.WeakKeyDictionary[AdapterWeights, int] = weakref.WeakKeyDictionary()

    def number(self, served: AdapterWeights) -> int:
        """What the other ranks know it by."""
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
        # The others have it for as long as this rank has.
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
