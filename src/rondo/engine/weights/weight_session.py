"""A weight update in vLLM's steps: start, update with a folder, finish. The new version takes effect when the update is
finished; until then, or after an error, the old version serves."""

from __future__ import annotations

from pathlib import Path

from rondo.base.errors import Conflict, InvalidRequest
from rondo.client.engine import Engine

NOT_STARTED = "no weight update is in progress: POST /start_weight_update first."


class WeightSession:
    """Weight update session of one engine, at most one at a time; used from one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._given: tuple[Path, int | None] | None = None
        self._finishing = False
        self.open = False

    def start(self) -> None:
        if self.open:
            raise Conflict(
                "a weight update is already in progress: finish it, or abort it with POST /abort_weight_update."
            )
        self.open = True

    async def update(self, path: Path, version: int | None) -> None:
        """Checks and records the folder. Like in vLLM, a failed update ends the session."""
        self._check_open()
        try:
            await self._engine.check_weights(path, version)
        except BaseException:
            self._end()
            raise
        self._given = path, version

    async def finish(self, version: int | None) -> None:
        self._check_open()
        if self._given is None:
            raise Conflict("no weights were given: POST /update_weights before the update is finished.")
        path, given = self._given
        if version is None:
            version = given
        if version is None:
            raise InvalidRequest(
                "which version these weights are was said neither in update_info nor here.",
                param="weight_version",
            )
        if given not in (None, version):
            raise InvalidRequest(
                f"the weights were given as version {given}, not {version}.", param="weight_version"
            )
        self._finishing = True
        try:
            await self._engine.update_weights(path, version)
        finally:
            self._end()

    def abort(self) -> None:
        """Ends the session; no weights have been replaced."""
        if self._finishing:
            raise Conflict("the weight update is being finished, and can no longer be aborted.")
        self._end()

    def _check_open(self) -> None:
        if not self.open:
            raise Conflict(NOT_STARTED)
        if self._finishing:
            raise Conflict("the weight update is being finished.")

    def _end(self) -> None:
        self._given, self._finishing, self.open = None, False, False
