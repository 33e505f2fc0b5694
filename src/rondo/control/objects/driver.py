"""Moves batches from state to state: validates input files, fills the queue, writes results, publishes output files.

One gateway at a time drives a batch, by a duty that it renews. After a crash another one, or the same, goes on: which
requests are in the queue and which results are written is in the store, and each step can be repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, Forbidden, NotFound, RondoError
from rondo.base.telemetry.log import get_logger
from rondo.client.protocol.item import item_text, with_model
from rondo.control.config import BatchesConfig, FilesConfig
from rondo.control.objects.batches import ENDED, StoredBatch, batch_of, change
from rondo.control.objects.blobs import Blobs, explained
from rondo.control.objects.files import StoredFile, insert_file, new_file
from rondo.control.objects.lines import check_file, lines_of, read_line
from rondo.control.objects.output import output_ids, write_results
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import New
from rondo.control.store.clock import microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import duties

log = get_logger("rondo.batches")

CHUNK_LINES, CHUNK_BYTES = 1000, 4 << 20
"""Requests that enter the queue in one transaction."""
CHUNKS = 16
"""Chunks between two looks at results and at the batch's state."""
SLICE_SECONDS = 15.0
"""Time after which a batch leaves its place to others."""

Models = Callable[[], Collection[str] | None]
"""Names of models that can be used; None while they are unknown, since no engine is ready."""


class _Lost(Exception):
    """Another gateway has the duty, or changed the batch: this one leaves it alone."""


class Drivers:
    """State shared by all drivers of a gateway, and which batches they drive."""

    def __init__(
        self,
        queue: Queue,
        blobs: Blobs,
        models: Models,
        batches: BatchesConfig,
        files: FilesConfig,
        target: Callable[[str], str] = str,
    ) -> None:
        """`target`: name of the model that a request's model, perhaps an alias, stands for."""
        self.store, self.queue, self.blobs, self.models = queue.store, queue, blobs, models
        self.batches, self.files, self.target = batches, files, target
        self._driven: set[str] = set()
        self._turns = count()
        self._latest: dict[str, int] = {}
        """Turn at which each unended batch was last driven."""

    def start(self, ids: Iterable[str]) -> list[Pending[None]]:
        """Drives those of the unended batches that are not driven, up to the limit, the least recently driven first."""
        unended = list(ids)
        self._latest = {id: self._latest[id] for id in unended if id in self._latest}
        waiting = [id for id in unended if id not in self._driven]
        free = self.batches.at_once - len(self._driven)
        started = []
        for id in sorted(waiting, key=lambda id: self._latest.get(id, -1))[: max(free, 0)]:
            done = self.store.background(Driver(self, id).run)
            self._driven.add(id)
            self._latest[id] = next(self._turns)
            done.add_done_callback(partial(self._ended, id))
            started.append(done)
        return started

    def _ended(self, id: str, done: Future[None]) -> None:
        self._driven.discard(id)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a batch cannot be driven", extra={"batch": id}, exc_info=error)


class Driver:
    """Drives one batch until nothing can be done at once, or until its slice of time has passed. It blocks: run it in a
    thread of the store's background."""

    def __init__(self, shared: Drivers, id: str) -> None:
        self.id, self.store, self.queue, self.blobs = id, shared.store, shared.queue, shared.blobs
        self.models, self.batches, self.files = shared.models, shared.batches, shared.files
        self.target = shared.target
        self._unqueued: Iterator[New] = iter(())
        self._queued: int | None = None
        """Requests before the next of `_unqueued`."""

    def run(self) -> None:
        duty = _Duty(self.store, self.id, self.batches.duty_seconds)
        try:
            duty.renew(force=True)
            until = time.monotonic() + SLICE_SECONDS
            while self._step(self._load(), duty) and time.monotonic() < until:
                duty.renew()
        except _Lost:
            return
        except RondoError as error:
            log.warning("a batch waits", extra={"batch": self.id, "error": error.message})
            return
        if self._load().state in ENDED:
            duty.end()
            self.blobs.remove_working(self.id)

    def _load(self) -> StoredBatch:
        return self.store.read(lambda db: batch_of(db, self.id, None)).result()

    def _step(self, batch: StoredBatch, duty: _Duty) -> bool:
        """Whether there may be more to do at once."""
        if batch.state in ENDED:
            return False
        if batch.state in ("validating", "in_progress") and batch.expires <= microseconds():
            self._change(batch, {"outcome": "expired", **_begun("finalizing", "finalized")})
            return True
        if batch.outcome != "completed":
            return self._stop(batch, duty)
        if batch.state == "validating":
            self._validate(batch, duty)
            return True
        if batch.written == batch.total:
            return self._finalize(batch)
        added = self._fill(batch, duty)
        return self._write(batch, duty) or added

    def _validate(self, batch: StoredBatch, duty: _Duty) -> None:
        models, allowed = self.models(), frozenset(batch.models.split(",")) - {""}

        def may_use(model: str) -> None:
            duty.renew()
            if allowed and model not in allowed:
                raise Forbidden(
                    f"The key may not use the model {model!r}, only {', '.join(sorted(allowed))}.",
                    param="body.model",
                    code="model_not_allowed",
                )
            if models is not None and model not in models:
                raise NotFound(
                    f"The model {model!r} does not exist: GET /v1/models lists the models.",
                    param="body.model",
                    code="model_not_found",
                )

        path = self.blobs.working(batch.id, "input")
        checked = check_file(path, batch.endpoint, self.batches.line_bytes, self.batches.lines, may_use)
        if checked.errors:
            errors = {"object": "list", "data": checked.errors}
            changes = {"outcome": "failed", "errors": json.dumps(errors), **_begun("failed", "ended")}
        else:
            changes = {"total": checked.total, "model": checked.model, **_begun("in_progress", "started")}
        self._change(batch, changes)

    def _fill(self, batch: StoredBatch, duty: _Duty) -> bool:
        """Puts requests into the queue, at most `CHUNKS` chunks. Whether some were added."""
        name = batch.queued_as or self._begin_group(batch)
        there = self.queue.group(name).result().total
        if there >= batch.total:
            return False
        if there != self._queued:
            self._unqueued = self._prompts(batch, there)
        for _ in range(CHUNKS):
            chunk = list(_chunk(self._unqueued))
            if not chunk:
                break
            duty.renew()
            self.queue.extend(name, there, chunk).result()
            self._queued = there = there + len(chunk)
        return True

    def _begin_group(self, batch: StoredBatch) -> str:
        """The idempotency key makes it one group, also after a crash between the two transactions."""
        group = self.queue.put([], batch.owner, key=f"batch {batch.id}", sealed=False).result()
        self._change(batch, {"queued_as": group.name})
        return group.name

    def _prompts(self, batch: StoredBatch, begin: int) -> Iterator[New]:
        longest = self.batches.line_bytes
        lines = (raw for raw, _ in lines_of(self.blobs.working(batch.id, "input"), longest) if raw.strip())
        for raw in islice(lines, begin, None):
            line = read_line(raw, batch.endpoint, longest)
            model = self.target(line.model)
            body = line.body if model == line.model else with_model(line.body, model)
            yield New(model, item_text(batch.endpoint, body), self.batches.priority)

    def _write(self, batch: StoredBatch, duty: _Duty) -> bool:
        wrote = False
        while (after := write_results(self.store, self.blobs, self.batches, batch)) is not None:
            batch, wrote = after, True
            duty.renew()
        return wrote

    def _stop(self, batch: StoredBatch, duty: _Duty) -> bool:
        """Ends a batch that was cancelled or has expired, with the results until then."""
        if batch.queued_as is not None and batch.written < batch.total:
            try:
                self.queue.cancel(batch.queued_as).result()
            except NotFound:  # pruned
                log.warning("the results of a batch have been deleted", extra={"batch": batch.id})
        if self._write(batch, duty):
            return True
        if batch.written == batch.total:
            self._publish(batch)
            return True
        return False

    def _finalize(self, batch: StoredBatch) -> bool:
        if batch.state == "in_progress":
            self._change(batch, _begun("finalizing", "finalized"))
        else:
            self._publish(batch)
        return True

    def _publish(self, batch: StoredBatch) -> None:
        """Files first, then the rows of the files and the state in one transaction."""
        made: list[StoredFile] = []
        for id, kind, size in zip(
            output_ids(batch.id), ("output", "errors"), (batch.output_bytes, batch.error_bytes)
        ):
            if size:
                path = self.blobs.working(batch.id, kind)
                _cut(path, size)
                self.blobs.link(path, self.blobs.kept(id))
                made.append(self._output_file(batch, id, kind, size))
        self._seal(batch)

        def work(db: sa.Connection) -> bool:
            if not change(db, batch, _begun(batch.outcome, "ended")):
                return False
            for file in made:
                insert_file(db, file)
            return True

        if not self.store.write(work).result():
            raise _Lost
        log.info("a batch ended", extra={"batch": batch.id, "state": batch.outcome, **batch.counts})

    def _output_file(self, batch: StoredBatch, id: str, kind: str, size: int) -> StoredFile:
        name = f"{batch.id}_{'output' if kind == 'output' else 'error'}.jsonl"
        file = new_file(batch.owner, name, "batch_output", size, batch.output_expires_after, self.files)
        return replace(file, id=id)

    def _seal(self, batch: StoredBatch) -> None:
        """Until here the group has not ended, so that none of its results is pruned before it is written."""
        if batch.queued_as is None:
            return
        try:
            self.queue.extend(batch.queued_as, batch.total, [], seal=True).result()
        except (Conflict, NotFound):
            return  # sealed before

    def _change(self, batch: StoredBatch, changes: dict[str, Any]) -> None:
        if not self.store.write(lambda db: change(db, batch, changes)).result():
            raise _Lost


class _Duty:
    def __init__(self, store: Store, id: str, seconds: float) -> None:
        self.store, self.name, self.seconds, self._renew_at = store, f"batch {id}", seconds, 0.0

    def renew(self, force: bool = False) -> None:
        if not force and time.monotonic() < self._renew_at:
            return
        if not self.store.claim(self.name, self.seconds).result():
            raise _Lost
        self._renew_at = time.monotonic() + self.seconds / 4

    def end(self) -> None:
        self.store.write(lambda db: db.execute(sa.delete(duties).where(duties.c.name == self.name))).result()


def _begun(state: str, column: str) -> dict[str, Any]:
    return {"state": state, column: microseconds()}


def _chunk(prompts: Iterator[New]) -> Iterator[New]:
    size = 0
    for prompt in islice(prompts, CHUNK_LINES):
        yield prompt
        size += len(prompt.body)
        if size >= CHUNK_BYTES:
            return


def _cut(path: Path, size: int) -> None:
    """Removes bytes that a killed driver wrote without having stored their number."""
    with explained(path.parent), path.open("rb+") as file:
        file.truncate(size)
        file.flush()
