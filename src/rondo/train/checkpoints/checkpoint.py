"""Checkpoints of a job: `step_<n>/`, complete or absent, verified before use; on the local disk or in an object store.

A checkpoint exists if its manifest does, which is written last and removed first.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import RondoError, StorageError
from rondo.data.storage.places import OutputFolder, folder_of, open_file

MANIFEST, STATE = "manifest.json", "state.json"
READ_BYTES = 8 << 20


@dataclass(frozen=True)
class Checkpoint:
    folder: str
    """Path or URL of the checkpoint."""
    step: int
    sums: Mapping[str, str]
    value: float | None = None
    """Metric that ranks the best checkpoints: lower is better."""

    def state(self) -> dict[str, Any]:
        """State of the job besides the tensors, such as the position in the data."""
        state: dict[str, Any] = json.loads(folder_of(self.folder).read(STATE) or b"{}")
        return state

    def verify(self, files: Sequence[str] | None = None) -> None:
        """Raises an error with the file's name if any of `files`, or of all files, differs from the manifest."""
        for name in self.sums if files is None else files:
            found = _sha256(f"{self.folder}/{name}")
            if found is None:
                raise StorageError(f"{self.folder} lacks {name}: the checkpoint is torn")
            if found != self.sums[name]:
                raise StorageError(
                    f"{self.folder}/{name} does not match its manifest: the checkpoint is damaged"
                )


@dataclass(frozen=True)
class Keep:
    """Retention of checkpoints: the last ones and, in addition, the best ones."""

    last: int = 2
    best: int = 0


def try_place(place: str, rank: int) -> None:
    """Raises if this rank cannot write to `place`, before any work could be lost."""
    name = f".try_{rank}"
    try:
        folder = folder_of(place)
        folder.write(name, b"")
        folder.remove(name)
    except RondoError as error:
        error.message, error.param = f"train.save_to: {error.message}", "train.save_to"
        raise


NAME = re.compile(r"step_(\d+)")


def existing(place: str) -> list[Checkpoint]:
    """All checkpoints in `place`, newest first."""
    folder = folder_of(place)
    found = []
    for name, step in _steps(folder):
        manifest = folder.read(f"{name}/{MANIFEST}")
        if manifest is not None:
            said = _parsed(manifest)
            found.append(Checkpoint(f"{place}/{name}", step, said["sha256"], said.get("value")))
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def prune(folder: OutputFolder, keep: Keep, step: int) -> None:
    """Removes incomplete checkpoints, and checkpoints up to `step` unless they are among the last or the best. A later
    checkpoint is from a run that has rolled back since: it counts for no limit, and is handled once training reaches
    its step.
    """
    whole = existing(folder.name)
    found = [checkpoint for checkpoint in whole if checkpoint.step <= step]
    rated = sorted((c for c in found if c.value is not None), key=lambda c: (c.value, -c.step))
    later = [checkpoint for checkpoint in whole if checkpoint.step > step]
    stay = {c.step for c in [*found[: keep.last], *rated[: keep.best], *later]}
    for name, of in _steps(folder):
        if of not in stay:
            remove(folder, name)


def _steps(folder: OutputFolder) -> list[tuple[str, int]]:
    """Names and steps of checkpoint folders; other files belong to the user."""
    return [(name, int(found[1])) for name in folder.names() if (found := NAME.fullmatch(name))]


def remove(folder: OutputFolder, name: str) -> None:
    """Removes the manifest first: a partly removed checkpoint does not count as one."""
    folder.remove(f"{name}/{MANIFEST}")
    folder.remove(name)


def _parsed(manifest: bytes) -> dict[str, Any]:
    """Content of a manifest. An unreadable one yields a hash that never matches, so its checkpoint fails
    verification.
    """
    try:
        said = json.loads(manifest)
        return said if isinstance(said["sha256"], dict) else {"sha256": {MANIFEST: ""}}
    except (ValueError, KeyError, TypeError):
        return {"sha256": {MANIFEST: ""}}


def _sha256(file: str) -> str | None:
    """Hex digest of a file, or None if it does not exist."""
    found = hashlib.sha256()
    try:
        with open_file(file) as stream:
            while data := stream.read(READ_BYTES):
                found.update(data)
    except RondoError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    return found.hexdigest()
