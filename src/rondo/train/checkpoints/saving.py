"""Writing checkpoints while training continues, and selecting the one to resume from.

Every rank writes its part and reports the hashes of its files; the first one writes the manifest. A thread does so,
from copies in host memory.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from rondo.base.errors import RondoError, StorageError
from rondo.base.storage.files import storage_error
from rondo.base.telemetry.log import get_logger
from rondo.data.storage.places import folder_of
from rondo.parallel.ranks.crew import Aborted
from rondo.train.checkpoints.checkpoint import MANIFEST, STATE, Checkpoint, Keep, existing, prune, remove

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh
    from rondo.train.checkpoints import dcp

log = get_logger(__name__)
T = TypeVar("T")

PARTING_SECONDS = 5.0


class Checkpoints:
    """Checkpoints of one job. All ranks have such an object and call the same methods."""

    def __init__(self, place: str, keep: Keep, mesh: Mesh | None = None, *, reuse: bool = True) -> None:
        """With `reuse`, the memory of the copies is reused for the next save; otherwise it is freed once they are
        written.
        """
        self.place, self.keep, self._reuse = place.rstrip("/"), keep, reuse
        self._ranks = _Ranks(mesh)
        self._copies: dict[str, dcp.LocalTensor] = {}
        self._work: _Work | None = None
        self.spent: dict[str, float] = {}
        """Duration in seconds of the last save, in total and as a stall of the training loop; the caller clears it
        after reporting.
        """

    def save(
        self, tensors: Mapping[str, Tensor], step: int, state: Mapping[str, Any], value: float | None = None
    ) -> None:
        """Returns once the tensors may change; the next call of any method raises an error of this save. It waits for
        the previous save.
        """
        begin = time.perf_counter()
        from rondo.train.checkpoints import dcp

        self.wait()
        self._copies = dcp.copies_of(tensors, self._copies)
        self.spent["save_stall"] = time.perf_counter() - begin
        self._work = _Work(lambda: self._write(step, state, value))

    def check(self) -> None:
        """Raises the error of a failed save, if there is one so far."""
        if self._work and self._work.done:
            self.wait()

    def wait(self) -> None:
        if self._work:
            work, self._work = self._work, None
            self.spent["save_seconds"] = work.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Waits for the running save; after an error only for a limited time if there are other ranks, since they may
        be gone, and not at all after an abort by the user.
        """
        if error is None:
            self.wait()
        elif self._work and not isinstance(error, Aborted):
            self._work.give_up(None if self._ranks.count == 1 else PARTING_SECONDS)

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint; damaged ones are logged and skipped. Each rank verifies its share of the
        files.
        """
        found = self._ranks.first_does(lambda: existing(self.place))
        for checkpoint in found:
            own = sorted(checkpoint.sums)[self._ranks.own :: self._ranks.count]
            try:
                self._ranks.each_does(partial(checkpoint.verify, own))
            except StorageError as error:
                if self._ranks.first:
                    log.warning("%s; using the checkpoint before it", error)
            else:
                return checkpoint
        return None

    def _write(self, step: int, state: Mapping[str, Any], value: float | None) -> None:
        name = f"step_{step}"
        folder = folder_of(self.place)

        def clear() -> None:
            """Removes an incomplete checkpoint, or one of an abandoned run, with the same name."""
            remove(folder, name)

        def finish() -> None:
            text = json.dumps(state, indent=2).encode()
            folder.write(f"{name}/{STATE}", text)
            manifest = {
                "step": step,
                "value": value,
                "sha256": sums | {STATE: hashlib.sha256(text).hexdigest()},
            }
            folder.write(f"{name}/{MANIFEST}", json.dumps(manifest, indent=2).encode())

        self._ranks.first_does(clear)
        try:
            from rondo.train.checkpoints import dcp

            own = dcp.write(self._copies, f"{self.place}/{name}", self._ranks.group)
            sums = {file: sha for part in self._ranks.say(own) for file, sha in part.items()}
            self._ranks.first_does(finish)
        except RondoError:
            if self._ranks.first:
                remove(folder, name)  # useless, and a full disk needs the space
            raise
        finally:
            if not self._reuse:
                self._copies = {}
        if self._ranks.first:
            try:
                prune(folder, self.keep, step)
            except (RondoError, OSError) as error:
                log.warning("older checkpoints could not be removed: %s", error)


class _Work:
    """Work of a thread; `wait` raises its error."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(work,), name="rondo-save", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> float:
        """Waits for the end, and returns the duration in seconds."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._seconds

    def give_up(self, seconds: float | None) -> None:
        self._thread.join(seconds)

    def _run(self, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        try:
            work()
        except BaseException as error:
            self._error = error
        self._seconds = time.perf_counter() - begin


@dataclass
class _Ranks:
    """Process group for saving, separate from the training loop's, whose collectives continue in parallel."""

    mesh: Mesh | None
    group: Any = field(init=False)

    def __post_init__(self) -> None:
        self.group = self.mesh.host_group() if self.mesh else None

    @property
    def own(self) -> int:
        return self.mesh.world.rank if self.mesh else 0

    @property
    def count(self) -> int:
        return self.mesh.world.size if self.mesh else 1

    @property
    def first(self) -> bool:
        return self.own == 0

    def say(self, own: T) -> list[T]:
        from rondo.parallel.ranks.mesh import said

        return [own] if self.group is None else said(own, self.group)

    def each_does(self, work: Callable[[], T]) -> list[T]:
        """Results of all ranks; an error of one is raised on all."""
        result: tuple[T | None, RondoError | None]
        try:
            result = work(), None
        except RondoError as error:
            result = None, error
        except OSError as error:
            result = None, storage_error(error.filename or "the checkpoint", error)
        found = self.say(result)
        for _, wrong in found:
            if wrong is not None:
                raise wrong
        return [value for value, _ in found]  # type: ignore[misc]

    def first_does(self, work: Callable[[], T]) -> T:
        return self.each_does(lambda: work() if self.first else None)[0]  # type: ignore[return-value]
