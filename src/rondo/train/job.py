"""A job's directory: its spec, its state, one line of metrics a step."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rondo.base.files import atomic_write, read_json, write_json
from rondo.base.hashing import sha256_json
from rondo.base.home import jobs_dir

State = Literal["queued", "starting", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Job:
    path: Path

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Job:
        """The directory of this spec: the same spec, its data's hash included, is the same job."""
        job = cls(jobs_dir() / sha256_json(spec))
        if not (job.path / "spec.json").exists():
            write_json(job.path / "spec.json", spec)
        return job

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def export(self) -> Path:
        return self.path / "export"

    def state(self) -> State | None:
        file = self.path / "status.json"
        if not file.exists():
            return None
        state: State = read_json(file)["state"]
        return state

    def set_status(self, state: State, step: int, **facts: object) -> None:
        write_json(self.path / "status.json", {"state": state, "step": step, "time": time.time(), **facts})

    def log(self, row: dict[str, object]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def forget_after(self, step: int) -> None:
        """Drops the metrics of steps that will be done again, and a line that a crash cut short."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        kept = []
        for line in file.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row["step"] <= step:
                kept.append(line + "\n")
        atomic_write(file, "".join(kept))
