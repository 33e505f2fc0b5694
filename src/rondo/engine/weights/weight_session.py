"""A weight update in vLLM's steps: start, update with a source, finish. The update brings the new version to this host
and verifies it; it takes effect when the update is finished. Until then, or after an error, the old version serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from rondo.base.errors import Conflict, InvalidRequest
from rondo.client.engine import RunningRequests, ServedEngine
from rondo.weights.transports.segment import Held
from rondo.weights.transports.source import WeightSource, fetch
from rondo.weights.transports.trainer_group import Announced, TrainerGroup

ABORTED = "the weight update was aborted while its weights were fetched."
NOT_STARTED = "no weight update is in progress: POST /start_weight_update first."


class WeightSession:
    """Weight update session of one engine, at most one at a time; used from one event loop."""

    def __init__(self, engine: ServedEngine, config: Mapping[str, Any] | None = None) -> None:
        """`config` is the model's config.json, for versions that arrive without one."""
        self._engine, self._config = engine, config or {}
        self._trainer = TrainerGroup()
        self._given: tuple[Held, int | None] | None = None
        self._used: Held | None = None
        """The version in use, which its owner must not overwrite."""
        self._finishing = False
        self.open = False

    def start(self) -> None:
        if self.open:
            raise Conflict(
                "a weight update is already in progress: finish it, or abort it with POST /abort_weight_update."
            )
        self.open = True

    async def connect(self, info: Mapping[str, Any]) -> None:
        """Joins the process group of a trainer that broadcasts its tensors."""
        await asyncio.to_thread(self._trainer.connect, info)

    async def receive(self, info: Mapping[str, Any]) -> None:
        """Receives tensors that a connected trainer announces, as the next version."""
        version = self._engine.weight_version + 1
        announced = Announced.parse(info, self._trainer.packed)
        await self._take(lambda: self._trainer.receive(announced, self._config, version), version)

    async def update(self, source: WeightSource, version: int | None) -> None:
        """Fetches and checks the weights. Like in vLLM, a failed update ends the session."""
        base = None if self._used is None else self._used.folder
        await self._take(lambda: fetch(source, version, base=base), version)

    async def _take(self, bring: Callable[[], Held], version: int | None) -> None:
        self._check_open()
        try:
            held = await asyncio.to_thread(bring)
            try:
                await self._engine.check_weights(held.folder, version)
            except BaseException:
                held.release()
                raise
        except BaseException:
            self._end()
            raise
        if not self.open:
            held.release()
            raise Conflict(ABORTED)
        self._drop()
        self._given = held, version

    async def finish(self, version: int | None, requests: RunningRequests = "retain") -> None:
        self._check_open()
        if self._given is None:
            raise Conflict("no weights were given: POST /update_weights before the update is finished.")
        held, given = self._given
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
            await self._engine.update_weights(held.folder, version, requests)
            used, self._used, self._given = self._used, held, None
            if used is not None:
                used.release()
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

    def _drop(self) -> None:
        """Releases fetched weights and not switched to."""
        if self._given is not None:
            self._given[0].release()
        self._given = None

    def _end(self) -> None:
        self._drop()
        self._finishing, self.open = False, False
