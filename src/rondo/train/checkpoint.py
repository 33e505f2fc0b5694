"""Checkpoints of a job: `checkpoints/step_<n>/`, whole or absent, verified before use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import RondoError, StorageError
from rondo.base.files import atomic_dir, read_json, write_json
from rondo.base.hashing import sha256_file
from rondo.base.log import get_logger

log = get_logger(__name__)

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        """What the job wrote beside the tensors: the data's position and the like."""
        state: dict[str, Any] = read_json(self.path / "state.json")
        return state


def save(job: Path, step: int, write: Callable[[Path], None], state: dict[str, Any], keep: int) -> Checkpoint:
    """`write` fills the folder; the manifest goes in last; then the oldest beyond `keep` go."""
    path = job / "checkpoints" / f"step_{step}"
    with atomic_dir(path, replace=True) as folder:
        write(folder)
        write_json(folder / "state.json", state)
        for file in folder.iterdir():  # the safetensors library opens its files for their owner alone
            shutil.copymode(folder / "state.json", file)
        sums = {file.name: sha256_file(file) for file in sorted(folder.iterdir())}
        write_json(folder / MANIFEST, {"step": step, "sha256": sums})
    for old in existing(job)[keep:]:
        shutil.rmtree(old.path)
    return Checkpoint(path, step)


def latest(job: Path) -> Checkpoint | None:
    """The newest checkpoint whose files are what its manifest says; broken ones are named and passed over."""
    for checkpoint in existing(job):
        try:
            verify(checkpoint.path)
        except RondoError as error:
            log.warning("%s; using the checkpoint before it", error)
        else:
            return checkpoint
    return None


def verify(path: Path) -> None:
    """Raises, naming the file, if anything differs from the manifest."""
    manifest = read_json(path / MANIFEST)
    for name, expected in manifest["sha256"].items():
        if not (path / name).is_file():
            raise StorageError(f"{path} lacks {name}: the checkpoint is torn")
        if sha256_file(path / name) != expected:
            raise StorageError(f"{path / name} is not what its manifest says: the checkpoint is damaged")


def existing(job: Path) -> list[Checkpoint]:
    """Newest first."""
    found = [
        Checkpoint(path.parent, int(path.parent.name[5:]))
        for path in job.glob(f"checkpoints/step_*/{MANIFEST}")
    ]
    return sorted(found, key=lambda checkpoint: -checkpoint.step)
