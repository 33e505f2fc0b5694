"""Progress of a job as `status.trainerStatus` of its TrainJob: percentage, remaining time and metrics, which
`kubectl get trainjob` shows.

Kubeflow Trainer with the feature gate TrainJobStatus injects the address of its status server, a certificate and a
token into each pod.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rondo.base.telemetry.log import get_logger

log = get_logger(__name__)

URL, CERTIFICATE, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
SECONDS = 5.0
"""Least time between two updates, and longest time of one."""
MOST_METRICS, LONGEST = 256, 64


class TrainJobStatus:
    """Sends the newest progress from a thread of its own, so that a slow server delays no step. A failure is logged
    once, and ends no job."""

    def __init__(self, steps: int) -> None:
        self._steps = max(steps, 1)
        self._begin: tuple[int, float] | None = None
        """First step of this process, and its time."""
        self._newest: dict[str, Any] | None = None
        self._sent: dict[str, Any] | None = None
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rondo-trainjob-status", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = time.monotonic()
        begin, since = self._begin = self._begin or (step, now)
        left = max(self._steps - step, 0)
        told: dict[str, Any] = {"progressPercentage": min(100 * step // self._steps, 100)}
        if step > begin or not left:
            told["estimatedRemainingSeconds"] = int((now - since) / max(step - begin, 1) * left)
        rows = [("step", step), *values.items()][:MOST_METRICS]
        told["metrics"] = [{"name": name[:LONGEST], "value": f"{value:.6g}"} for name, value in rows]
        self._newest = told
        self._changed.set()

    def close(self) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join(2 * SECONDS)

    def _run(self) -> None:
        failed = False
        while not (self._ended.is_set() and self._newest is self._sent):
            self._changed.wait()
            self._changed.clear()
            if (told := self._newest) is None or told is self._sent:
                continue
            self._sent = told
            try:
                _send(told)
            except (OSError, ValueError) as error:
                if not failed:
                    log.warning("the progress is not reported to Kubeflow Trainer: %s", error)
                failed = True
            self._ended.wait(SECONDS)


def _send(told: Mapping[str, Any]) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = json.dumps({"trainerStatus": {"lastUpdatedTime": now, **told}}).encode()
    token = Path(os.environ[TOKEN]).read_text().strip()  # it is rotated
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ[URL], body, headers)
    context = (
        ssl.create_default_context(cafile=os.environ.get(CERTIFICATE)) if request.type == "https" else None
    )
    with urllib.request.urlopen(request, timeout=SECONDS, context=context):
        pass
