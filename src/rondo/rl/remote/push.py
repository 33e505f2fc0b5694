"""Weight push to remote engines: each version is a checkpoint folder, deleted when all engines have the next one."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rondo import models
from rondo.models import Decoder
from rondo.models.adapters import adapter_of, merge
from rondo.rl.remote.engine_pool import EnginePool
from rondo.rl.rollout.async_collector import EventLoop
from rondo.train.evaluation.evaluator import Metrics

COUNTED = ("lost", "asked_again")
PREFIX = "version_"


class FolderPush:
    def __init__(self, model: Decoder, pool: EnginePool, events: EventLoop, folder: str) -> None:
        """`model` is the computing copy of the policy. `folder` must be readable by the engines; the default is a
        temporary folder of this machine. Versions of an earlier trainer in it are deleted.
        """
        self._model, self._pool, self._events = model, pool, events
        self._place = Path(folder or tempfile.mkdtemp(prefix="rondo-weights-")).absolute()
        self._delete()
        self._push(1 + max(engine.version for engine in pool.engines))

    @property
    def version(self) -> int:
        return self._pool.version

    @contextmanager
    def update(self, version: int) -> Iterator[None]:
        """A context in which the model may change; the push at its end is skipped if the block raises."""
        yield
        self._push(version)

    def metrics(self) -> Metrics:
        found, self._pool.counts = self._pool.counts, Counter()
        return {f"engine/{name}": float(found[name]) for name in COUNTED}

    def close(self) -> None:
        self._events.do(self._pool.close())
        self._delete()
        with suppress(OSError):  # the folder contains other files
            self._place.rmdir()

    def _push(self, version: int) -> None:
        folder = self._place / f"{PREFIX}{version}"
        models.save(_merged(self._model), folder)
        self._events.do(self._pool.push(version, folder))
        self._delete(folder)

    def _delete(self, kept: Path | None = None) -> None:
        for folder in self._place.glob(f"{PREFIX}*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)


def _merged(model: Decoder) -> Decoder:
    """The model with its adapter merged, if it has one."""
    if adapter_of(model) is None:
        return model
    twin = copy.deepcopy(model)
    merge(twin)
    return twin
