"""Weight push to remote engines through the checkpoint engine: segments in shared memory for engines of this host, HTTP
or a store for others, and a model folder for each version as the last resort.

Engines that read segments verify complete buckets while later ones are written. Other and failed engines are
pushed to when the version is complete.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rondo import models
from rondo.base.errors import Conflict, RondoError, StorageError
from rondo.base.storage.files import atomic_dir
from rondo.base.telemetry.log import get_logger
from rondo.models import Decoder
from rondo.models.adapters import adapter_of, merge
from rondo.models.adapters.merged import is_quantized_base, merged_outgoing
from rondo.models.files.headers import SINGLE
from rondo.models.files.mapping import outgoing
from rondo.rl.remote.config import FarConfig
from rondo.rl.remote.engine import FENCED
from rondo.rl.remote.engine_pool import EnginePool
from rondo.rl.remote.offer import Route, WeightOffer, address_towards
from rondo.rl.remote.store import VersionStore
from rondo.rl.rollout.async_collector import EventLoop
from rondo.train.evaluation.evaluator import Metrics
from rondo.weights.directory import WeightDirectory, newest_version, open_directory
from rondo.weights.directory.handover import hand_over
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from rondo.weights.transports.segment import read_segment
from rondo.weights.transports.serving import VersionServer
from rondo.weights.transports.source import WeightSource

if TYPE_CHECKING:
    from rondo.rl.remote.rank_policy import RankPolicy

log = get_logger(__name__)
COUNTED = ("lost", "asked_again")
PREFIX = "version_"
HANDOVER_SECONDS = 60.0
"""Longest wait for replicas at the end of a run."""
POLL_SECONDS = 0.5
"""Seconds between two attempts to claim the model."""
COPY_SECONDS = 60.0
"""Longest wait for the lock of a segment that is copied."""


class PolicyPublisher(Publisher):
    def _start(self) -> tuple[Path, int]:
        """Waits for the claim of a killed run, which lasts until its lease ends."""
        deadline = time.monotonic() + 2 * self.settings.lease_seconds
        while True:
            try:
                return super()._start()
            except Conflict:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def permit(self) -> None:
        """Raise Conflict with the code `fenced` if another learner has claimed the model."""
        try:
            self._keep_claim()
        except Conflict as error:
            raise Conflict(error.message, code=FENCED) from error


class RemotePush:
    def __init__(
        self,
        model: Decoder,
        pool: EnginePool,
        events: EventLoop,
        config: FarConfig,
        name: str,
        ranks: RankPolicy | None = None,
    ) -> None:
        """`model` is the computing copy of the policy, `name` its name on the network. With `ranks`, `model` is a part
        of the policy, and each rank pushes its shards. Versions of an earlier trainer in the configured folder are
        deleted."""
        self._ranks = ranks
        self._model, self._pool, self._events, self._config, self._name = model, pool, events, config, name
        self._place = Path(config.folder or tempfile.mkdtemp(prefix="rondo-push-")).absolute()
        self._store = VersionStore(config.store) if config.store else None
        self._directory: WeightDirectory | None = None
        self._publisher: PolicyPublisher | None = None
        self._previous = 0
        """The version before the newest one."""
        self._servers: dict[str, VersionServer] = {}
        """Servers by the address on which they listen."""
        self._serving = threading.Lock()
        self._sent = model
        """The policy with its adapter merged, during a push."""
        self._delete()
        try:
            if config.transport != "folder":
                self._publisher = self._published()
            self._push(1 + self._newest())
        except BaseException:
            self._release()
            raise
        folders = all(engine.transport == "folder" for engine in pool.engines)
        if folders and not config.is_published and ranks is None:
            self._release()

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
        self._hand_over()
        self._release()
        self._delete()
        if self._store is not None:
            self._store.remove()
        with suppress(OSError):  # the folder contains other files
            self._place.rmdir()

    def _push(self, version: int) -> None:
        source, folder = "", self._place / f"{PREFIX}{version}"
        self._previous = self._pool.version
        self._sent = self._model if self._ranks else _merged(self._model)
        with self._serving:
            for server in self._servers.values():
                server.expire()
        if self._publisher is not None and self._writes(self._publisher, version):
            source = self._publisher.source
            with self._serving:
                for server in self._servers.values():
                    server.offer(WeightSource.parse(source).folder, version)
            if self._store is not None:
                self._store.put(source)
        elif self._ranks is not None:
            self._ranks.gather(folder)
        offer = WeightOffer(
            version,
            source,
            self._serve,
            lambda: self._save(folder, version, source),
            self._only(),
            self._config.store,
            self._permit,
        )
        if any(engine.transport == "folder" for engine in self._pool.engines):
            offer.place("folder", "")  # an engine that returns later reads it while the model changes
        self._events.do(self._pool.push(offer))
        self._sent = self._model
        self._delete(folder)
        if self._store is not None:
            self._store.remove(kept=version)

    def _newest(self) -> int:
        """Newest version of the engines, the directory and the store."""
        found = [engine.version for engine in self._pool.engines]
        if self._directory is not None:
            found.append(newest_version(self._directory, self._name))
        if self._store is not None:
            found.append(self._store.newest)
        return max(found)

    def _only(self) -> Route | None:
        if self._store is not None:
            return "store"
        return None if self._config.transport == "auto" else cast(Route, self._config.transport)

    def _permit(self) -> None:
        """Raise Conflict if another learner has claimed the model."""
        if self._publisher is not None:
            self._publisher.permit()

    def _writes(self, publisher: Publisher, version: int) -> bool:
        """Writes the version into shared memory, and switches the engines that follow the segment; False if the memory
        is full and a folder may be used."""
        try:
            report = publisher.push(version, self._pool.announce(version, self._events))
        except StorageError as error:
            if not self._config.may_use_folders:
                raise
            log.warning("weights are pushed through a folder", extra={"reason": error.message})
            return False
        for url, reason in report.failed.items():
            log.warning("an engine did not follow a segment", extra={"url": url, "reason": reason})
        return True

    def _published(self) -> PolicyPublisher | None:
        """The publisher with the registered model; None if shared memory is full and a folder may be used."""
        settings = self._config.weights
        self._directory = open_directory(self._config.directory, settings.lease_seconds)
        hf, group = dict(self._model.config.hf or {}), self._ranks.group if self._ranks else None
        publisher = PolicyPublisher(self._name, hf, settings, self._directory, group)
        try:
            publisher.register(self._ranks.shards if self._ranks else self._shards)
        except StorageError as error:
            publisher.close()
            if not self._config.may_use_folders:
                raise
            log.warning("weights are pushed through folders", extra={"reason": error.message})
            return None
        return publisher

    def _shards(self) -> Iterator[Shard]:
        model = self._sent
        tensors = merged_outgoing(model) if is_quantized_base(model) else outgoing(model)
        return (Shard(each.name, each.make()) for each in tensors)

    def _serve(self, url: str) -> str:
        assert self._publisher is not None
        address = address_towards(url)
        with self._serving:
            if address not in self._servers:
                server = self._servers[address] = VersionServer(self._name, address, self._config.deltas)
                server.offer(WeightSource.parse(self._publisher.source).folder, self._pool.version)
            return self._servers[address].source

    def _save(self, folder: Path, version: int, source: str) -> Path:
        if self._ranks is None:
            models.save(self._sent, folder)
        elif source:
            _copy(WeightSource.parse(source).folder, version, folder)
        return folder

    def _hand_over(self) -> None:
        """Waits until the replicas that follow the run have its last version."""
        if self._publisher is None or self._directory is None or not self._config.is_published:
            return
        versions = (self._pool.version, self._previous)
        try:
            found = hand_over(
                *(self._directory, self._name, *versions, self._publisher.owner, HANDOVER_SECONDS),
                required=False,
            )
        except RondoError as error:
            log.warning("the directory does not answer", extra={"reason": error.message})
            return
        if found.late:
            log.warning("replicas keep an older version", extra={"replicas": sorted(found.late)})

    def _release(self) -> None:
        """End the servers and remove the segments."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def _delete(self, kept: Path | None = None) -> None:
        for folder in self._place.glob(f"{PREFIX}*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)


def _copy(segment: Path, version: int, folder: Path) -> None:
    """Copies a version in a segment, which is a model folder."""
    held = read_segment(segment, version, verify=False, seconds=COPY_SECONDS)
    try:
        with atomic_dir(folder, needed=(segment / SINGLE).stat().st_size) as partial:
            for name in ("config.json", SINGLE):
                shutil.copyfile(segment / name, partial / name)
    finally:
        held.release()


def _merged(model: Decoder) -> Decoder:
    """The model with its adapter merged, if it has one that is not merged while it is written."""
    if adapter_of(model) is None or is_quantized_base(model):
        return model
    twin = copy.deepcopy(model)
    merge(twin)
    return twin
