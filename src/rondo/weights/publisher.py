"""The learner's side of the checkpoint engine: registers shards with their sharding, and pushes versions to engines.

Every rank registers its own shards under Hugging Face names. A push writes each byte once, by one of its owners, into
one of two segments, bucket by bucket, while the engines already verify complete buckets.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rondo.base.errors import ConfigError, Conflict, RondoError, Unavailable
from rondo.base.storage.files import atomic_write
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Directory, Published, WeightDirectory, new_owner, newest_version
from rondo.weights.directory.lease import Lease
from rondo.weights.directory.types import not_newer
from rondo.weights.manifest import NAME, Manifest, SegmentLayout, WeightBucket, layout_of
from rondo.weights.plan.boxes import Box, intersect, runs, slices, split_rows
from rondo.weights.plan.layouts import Shapes
from rondo.weights.plan.planner import share_out
from rondo.weights.shards import LearnerRanks, Shard, Shards
from rondo.weights.transports.receiver import WeightReceiver, switch
from rondo.weights.transports.segment import WeightSegment, claim, discard, finished

PREFIX = "rondo-weights-"
RELEASE_SECONDS = 2.0
"""Time for an engine to release the version before the latest one."""


@dataclass(frozen=True)
class PushReport:
    """Figures of one push, of this rank; `transferred` is the time until every receiver had the version."""

    version: int
    nbytes: int
    written: int
    buckets: int
    copy_seconds: float
    seconds: float
    failed: Mapping[str, str] = field(default_factory=dict)


class Publisher:
    """Pushes the weights of one model. In a job of several ranks, `group` has all of them and every method is called
    by every rank; only rank 0 sends the version to receivers."""

    def __init__(
        self,
        model: str,
        config_json: Mapping[str, Any],
        settings: WeightsConfig | None = None,
        directory: WeightDirectory | None = None,
        group: dist.ProcessGroup | None = None,
        owner: str | None = None,
    ) -> None:
        """`owner` is the writer's name in the directory, by default one that no other process has."""
        self.model, self.settings = model, settings or WeightsConfig()
        self.directory: WeightDirectory = directory or Directory()
        self._config, self._ranks = dict(config_json), LearnerRanks(group)
        self._rank = self._ranks.rank
        self._shards: Shards | None = None
        self._segments: list[WeightSegment] = []
        self._turn = 0
        self._version: int | None = None
        self._entry: Published | None = None
        self._listed = True
        """Whether the directory has the version in use."""
        self._replaced: int | None = None
        """The version that is withdrawn when the version in use is published."""
        self._claiming = threading.Lock()
        self._handle: int | None = None
        self._lease: Lease | None = None
        self.owner = self._ranks.by_first(lambda: owner or new_owner())
        self.folder, self._token = self._ranks.by_first(self._start)
        self.buckets: tuple[WeightBucket, ...] = ()
        self._own: list[tuple[int, str, Box, WeightBucket]] = []

    def register(self, shards: Shards) -> None:
        """Registers this rank's shards; allocates the segments at the first call and when the layout has changed."""
        self._shards = shards
        held = [(s.name, _dtype(s), s.whole_shape, s.box) for s in shards()]
        everyone = self._ranks.from_all(held)
        tensors = {name: (dtype, shape) for each in everyone for name, dtype, shape, _ in each}
        layout = layout_of([(name, dtype, shape) for name, (dtype, shape) in tensors.items()])
        parts = share_out(
            {name: shape for name, (_, shape) in tensors.items()},
            [[(name, box) for name, _, _, box in each] for each in everyone],
        )
        self._plan_buckets(layout, parts)
        if not self._segments or self._segments[0].layout.header != layout.header:
            self._make_segments(layout)

    def push(self, version: int, receivers: Mapping[str, WeightReceiver] | None = None) -> PushReport:
        """Writes the version and switches every receiver to it. If a receiver fails, it continues with its version,
        and the report names it; if writing fails, all of them do. The version is that of rank 0."""
        if self._shards is None:
            raise ConfigError("no shards are registered: call register before push.")
        version = self._ranks.by_first(lambda: version)
        if self._version is not None and version <= self._version:
            raise Conflict(f"version {version} is not newer than {self._version}.")
        started = time.perf_counter()
        announced, latest = Manifest(self.model, version, self.buckets), self._turn
        self._ranks.by_first(lambda: self._admit(version))
        segment = self._begin(announced)
        receivers = dict(receivers or {}) if self._rank == 0 else {}
        with ThreadPoolExecutor(max(1, len(receivers))) as pool:
            pushes = {
                name: pool.submit(
                    switch, each, segment.folder, version, self.settings.requests, self._check_writer
                )
                for name, each in receivers.items()
            }
            try:
                written = self._written(segment, version)
            except BaseException:
                segment.abort()
                self._turn = latest
                raise
            copied = time.perf_counter() - started
            failed = {name: str(error) for name, each in pushes.items() if (error := each.exception())}
        self._published(segment, announced)
        done = time.perf_counter() - started
        return PushReport(version, segment.layout.nbytes, written, len(self.buckets), copied, done, failed)

    def close(self, keep: bool = False) -> None:
        """Removes the segments that no engine uses; with `keep`, the latest version stays for engines that start."""
        if self._lease is not None:
            self._lease.end()
        if self._rank == 0:
            with suppress(RondoError):
                if self._version is not None:
                    self.directory.withdraw(self.model, self._version, self.owner)
                self.directory.release(self.model, self._token)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            if keep:
                return
            discard(self.folder)

    @property
    def source(self) -> str:
        """Address of the latest version, for an engine that starts."""
        if self._version is None:
            raise Conflict("no version was pushed.")
        return f"shm:{self._segments[self._turn].folder}"

    @property
    def shapes(self) -> Shapes:
        """Shapes and element sizes of the registered tensors, for a plan."""
        if not self._segments:
            raise ConfigError("no shards are registered: call register before a plan is made.")
        return {
            name: (place.shape, place.itemsize) for name, place in self._segments[0].layout.tensors.items()
        }

    def _begin(self, announced: Manifest) -> WeightSegment:
        """The segment of the next version, which no engine uses. An engine that did not switch to the latest version
        keeps its segment, and a further one is made."""
        number = self._ranks.by_first(lambda: self._first_free(announced))
        if number == len(self._segments):
            layout = self._segments[0].layout
            self._segments.append(
                WeightSegment(self.folder / str(number), layout, self._config, create=False)
            )
        if self._rank:
            self._segments[number].attach(len(self.buckets))
        self._turn = number
        return self._segments[number]

    def _first_free(self, announced: Manifest) -> int:
        latest = self._turn if self._version is not None else -1
        numbers = [number for number in range(len(self._segments)) if number != latest]
        for number in numbers:
            if self._segments[number].begin(announced, RELEASE_SECONDS if number == numbers[-1] else 0.0):
                return number
        number = len(self._segments)
        made = WeightSegment(self.folder / str(number), self._segments[0].layout, self._config, create=True)
        made.begin(announced, 0.0)
        self._segments.append(made)
        return number

    def _written(self, segment: WeightSegment, version: int) -> int:
        """Bytes that this rank wrote; an error on every rank if one of them fails."""
        written, error = 0, None
        try:
            written = self._write(segment, version)
        except Exception as cause:
            error = cause
        found = [each for each in self._ranks.from_all(error and f"{type(error).__name__}: {error}") if each]
        if error is not None:
            raise error
        if found:
            raise Unavailable(
                f"another rank could not write version {version}: {found[0]}", code="rank_failed"
            )
        return written

    def _write(self, segment: WeightSegment, version: int) -> int:
        assert self._shards is not None
        waiting: dict[str, list[tuple[int, Box, WeightBucket]]] = {}
        for number, name, box, bucket in self._own:
            waiting.setdefault(name, []).append((number, box, bucket))
        written = 0
        jobs: list[Future[None]] = []
        with ThreadPoolExecutor(self.settings.threads) as pool:
            for shard in self._shards():
                parts = waiting.pop(shard.name, [])
                # Several shards of a rank may belong to one tensor.
                if others := [part for part in parts if intersect(part[1], shard.box) != part[1]]:
                    waiting[shard.name] = others
                for number, box, bucket in (part for part in parts if part not in others):
                    if len(jobs) >= 2 * self.settings.threads:
                        jobs.pop(0).result()
                    written += bucket.nbytes
                    part = _within(shard, box)
                    jobs.append(pool.submit(segment.write, shard.name, part, number, box, bucket, version))
            for job in jobs:
                job.result()
        if waiting:
            raise ConfigError(f"the learner registered {sorted(waiting)[0]}, but did not produce it.")
        return written

    def _plan_buckets(self, layout: SegmentLayout, parts: Sequence[Sequence[tuple[str, Box]]]) -> None:
        buckets: list[WeightBucket] = []
        self._own = []
        for rank, each in enumerate(parts):
            for name, box in each:
                place = layout.tensors[name]
                for part in split_rows(box, place.itemsize, self.settings.bucket_bytes):
                    found = tuple(runs(place.start, place.shape, place.itemsize, part))
                    if rank == self._rank:
                        self._own.append((len(buckets), name, part, WeightBucket(rank, found)))
                    buckets.append(WeightBucket(rank, found))
        self.buckets = tuple(buckets)

    def _make_segments(self, layout: SegmentLayout) -> None:
        places = [self.folder / str(number) for number in range(2)]

        def make() -> None:
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
            self._segments = [WeightSegment(place, layout, self._config, create=True) for place in places]

        self._ranks.by_first(make)
        if self._rank:
            self._segments = [WeightSegment(place, layout, self._config, create=False) for place in places]
        self._turn = 0

    def _published(self, segment: WeightSegment, announced: Manifest) -> None:
        previous, self._version = self._version, announced.version
        self._listed = False

        def publish() -> None:
            whole_version = finished(segment.folder, announced)
            atomic_write(segment.folder / NAME, whole_version.dump())
            self._entry = Published(
                self.model,
                announced.version,
                self.owner,
                whole_version.total,
                segment.layout.nbytes,
                len(segment.layout.tensors),
                f"shm:{segment.folder}",
            )
            self._replaced = previous
            self._keep_claim()

        self._ranks.by_first(publish)

    def _start(self) -> tuple[Path, int]:
        token = self.directory.claim(self.model, self.owner)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self.settings.folder))
        self._handle = claim(folder)
        self._lease = Lease(self.directory, self.owner, self.settings.lease_seconds, self._repair)
        return folder, token

    def _check_writer(self) -> None:
        self.directory.check(self.model, self._token)

    def _admit(self, version: int) -> None:
        """Raises `Conflict` unless this writer may create the version: before it is written and an engine switches."""
        self._keep_claim()
        newest = newest_version(self.directory, self.model)
        if version <= newest:
            raise not_newer(self.model, version, newest)

    def _keep_claim(self) -> None:
        """Claims the model again if the lease has expired, for example while this process was suspended, and publishes
        the version in use if that has failed."""
        try:
            self._check_writer()
        except Conflict:
            self._repair()
        if not self._listed:
            with self._claiming:
                self._list()

    def _list(self) -> None:
        """Publishes the version in use in place of the version before it."""
        if self._entry is None or self._entry.version != self._version:
            return
        self.directory.publish(self._entry, self._token)
        self._listed = True
        if self._replaced is not None:
            self.directory.withdraw(self.model, self._replaced, self.owner)
            self._replaced = None

    def _repair(self) -> None:
        """Claims the model again, unless another writer has claimed it, and publishes the version in use again."""
        with self._claiming:
            self._token = self.directory.claim(self.model, self.owner, self._token)
            self._list()


def _dtype(shard: Shard) -> str:
    return str(shard.dtype or shard.tensor.dtype).removeprefix("torch.")


def _within(shard: Shard, box: Box) -> Tensor:
    """A region of the whole tensor, as a view of the shard."""
    pairs = zip(box, shard.box, strict=True)
    return shard.tensor.detach()[slices(tuple((first - at, stop - at) for (first, stop), (at, _) in pairs))]
