"""Renewal of an owner's lease in the background, and repair of a lease that has expired."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import get_logger
from rondo.weights.directory.types import WeightDirectory

log = get_logger("rondo.weights")


class Lease:
    """`repair` claims and publishes the owner's entries again. It is called after the lease has expired, for example in
    a process that was suspended, and repeated until it succeeds."""

    def __init__(
        self, directory: WeightDirectory, owner: str, seconds: float, repair: Callable[[], None]
    ) -> None:
        self._directory, self._owner, self._seconds, self._repair = directory, owner, seconds, repair
        self._lapsed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rondo-lease", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()

    def renew(self) -> None:
        """Extends the lease once, or repairs it."""
        try:
            if not self._lapsed:
                self._directory.renew(self._owner)
        except RondoError as error:
            self._lapsed = error.code == "expired"
            log.warning("the lease was not renewed", extra={"owner": self._owner, "error": str(error)})
        if not self._lapsed:
            return
        try:
            self._repair()
            self._lapsed = False
        except RondoError as error:
            log.warning("the lease was not repaired", extra={"owner": self._owner, "error": str(error)})

    def _run(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            self.renew()
