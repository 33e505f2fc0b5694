"""Events of a job other than metrics: one line each in `events.jsonl` in the job's folder."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from rondo.base.errors import StorageError
from rondo.base.storage.files import atomic_write
from rondo.base.telemetry.log import get_logger

log = get_logger(__name__)

FILE = "events.jsonl"


class EventLog:
    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def add(self, kind: str, step: int, **facts: object) -> None:
        """Append an event. A write error is logged and does not stop the job; callers log the event itself."""
        line = json.dumps({"time": time.time(), "step": step, "kind": kind, **facts})
        try:
            with self._file.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            log.warning(
                "an event cannot be written down: %s", error.strerror, extra={"file": str(self._file)}
            )

    def all(self) -> list[dict[str, Any]]:
        """All events; incomplete lines are skipped."""
        try:
            lines = self._file.read_text().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"Cannot read {self._file}: {error.strerror}.") from error
        found = []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def standing(self) -> list[dict[str, Any]]:
        """Alarms still in effect."""
        found: dict[str, dict[str, Any]] = {}
        for event in self.all():
            if event["kind"] == "alarm":
                found[event["alarm"]] = event
            elif event["kind"] == "alarm_over":
                found.pop(event["alarm"], None)
        return list(found.values())

    def forget_after(self, step: int) -> None:
        """Delete the events of steps that will be repeated, and a line truncated by a crash."""
        if self._file.exists():
            kept = [json.dumps(event) + "\n" for event in self.all() if event["step"] <= step]
            atomic_write(self._file, "".join(kept))
