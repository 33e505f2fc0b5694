"""Engines that start with the first request for their model, within a memory budget, and end when idle.

The budget covers the engines of the command line, which are pinned, and engines on demand. A model that does not fit
replaces idle engines, the least recently used first. Requests wait while a model loads; a failed load is reported to
each of them, and the next attempt follows after a pause that doubles with each failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import InvalidRequest, NotFound, RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.supervisor.budget import check_fits, no_room, still_loading
from rondo.supervisor.calls import EngineKeys, is_alive, is_ready, load_adapter, read_load, unload_adapter
from rondo.supervisor.catalog import Catalog, Loadable, MemoryNeed
from rondo.supervisor.config import UpConfig
from rondo.supervisor.part import STABLE_SECONDS, Part, last_error

log = get_logger("rondo.supervisor")

READY_SECONDS = 0.1
LOAD_SECONDS = 0.5
"""Time between two reports of a loaded engine."""
UNUSED_SECONDS = 5.0
"""Time in which a loaded engine is not replaced before it has received a request."""


@dataclass(eq=False)
class OnDemandEngine:
    """An engine on demand. It counts against the budget until its process has ended."""

    model: Loadable
    need: MemoryNeed
    part: Part
    ready_at: float | None = None
    busy: bool = True
    idle: float = 0.0
    """Seconds since the latest request, by the engine's latest report."""
    leaving: threading.Event = field(default_factory=threading.Event)
    error: RondoError | None = None
    """Cause of a failed load."""

    @property
    def state(self) -> str:
        if self.leaving.is_set():
            return "unloading"
        return "loading" if self.ready_at is None else "ready"

    @property
    def replaceable(self) -> bool:
        if self.ready_at is None or self.busy or self.leaving.is_set():
            return False
        loaded = time.monotonic() - self.ready_at
        return loaded > UNUSED_SECONDS or self.idle + LOAD_SECONDS < loaded


@dataclass
class LoadFailure:
    """Failures in a row of one model. Without an `error` a request waits until `until`, instead of failing."""

    count: int
    until: float
    error: RondoError | None


class OnDemand:
    def __init__(
        self,
        catalog: Catalog,
        config: UpConfig,
        budget: int,
        pinned: Sequence[tuple[Part, str]],
        make_part: Callable[[Loadable, MemoryNeed, Sequence[Part]], Part],
        keys: EngineKeys,
    ) -> None:
        """`pinned` are the engines of the command line with the `source` of their model. `make_part` is given the parts
        that run, whose ports are in use."""
        self.catalog, self.config, self.budget = catalog, config, budget
        self._make_part, self._keys = make_part, keys
        self._pinned = list(pinned)
        self._pinned_bytes = sum(self._bytes_of(source) for _, source in self._pinned)
        self._slots: dict[str, OnDemandEngine] = {}
        self._failures: dict[str, LoadFailure] = {}
        self._offered: dict[str, Loadable] = {}
        """Models of the registry, by name."""
        self._adapters = threading.Lock()
        self._changed = threading.Condition()
        self._closing = False
        self._threads: set[threading.Thread] = set()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def parts(self) -> list[Part]:
        return [slot.part for slot in list(self._slots.values())]

    def rows(self) -> list[dict[str, object]]:
        """The parts for the state file. An engine that loads its model does not count as running."""
        slots = list(self._slots.values())
        return [
            slot.part.as_dict() | ({} if slot.state == "ready" else {"state": slot.state}) for slot in slots
        ]

    @property
    def used(self) -> int:
        return self._pinned_bytes + sum(slot.need.total for slot in list(self._slots.values()))

    def state(self, fresh: bool = False) -> dict[str, Any]:
        """Budget, models, and URLs of pinned engines by the `source` of their model, for the gateway and `rondo ps`."""
        pinned = dict[str, list[str]]()
        for part, source in self._pinned:
            pinned.setdefault(source, []).append(part.url)
        listed = [*self.catalog.models(fresh), *list(self._offered.values())]
        found = [self._row(model) for model in listed if model.source not in pinned]
        return {"budget": self.budget, "used": self.used, "models": found, "pinned": pinned}

    def offer(self, model: Loadable) -> None:
        """Makes a model loadable that the catalog does not list."""
        if _named(self.catalog.models(), model.name) is None:
            self._offered[model.name] = model

    def ensure(self, name: str) -> list[str]:
        """URLs of engines that serve the model. Blocks while it loads."""
        model = self._find(name)
        deadline = time.monotonic() + self.config.load_seconds
        if pinned := [part.url for part, source in self._pinned if source and source == model.source]:
            return self._started(model, pinned, deadline)
        if model.adapter is not None:
            try:
                if urls := self._as_adapter(model, name, deadline):
                    return urls
            except InvalidRequest as error:
                if not model.source:
                    raise
                log.warning(f"the merged weights are loaded instead: {error}", extra={"model": model.name})
        return [self._engine(model, deadline)]

    def _started(self, model: Loadable, urls: Sequence[str], deadline: float) -> list[str]:
        """URLs of those engines of the command line that are ready, when one is."""
        while not self._closing:
            if ready := [url for url in urls if is_ready(url)]:
                return ready
            if deadline <= time.monotonic():
                raise still_loading(model, "loading")
            time.sleep(READY_SECONDS)
        raise Unavailable("The supervisor is shutting down.", code="shutting_down")

    def unload(self, name: str) -> None:
        model = self._find(name)
        self._offered.pop(model.name, None)  # it is offered again with the next request
        with self._changed:
            slot = self._slots.get(model.name)
            if slot is not None:
                slot.leaving.set()
        if slot is None and model.adapter is not None:
            for url in self._serving(self._base_of(model)):
                for each in model.names:
                    unload_adapter(url, each, self._keys)

    def stop(self) -> None:
        with self._changed:
            self._closing = True
            for slot in self._slots.values():
                slot.leaving.set()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _find(self, name: str) -> Loadable:
        found = self._offered.get(name) or _named(self.catalog.models(), name)
        found = found or _named(self.catalog.models(fresh=True), name)
        if found is None:
            raise NotFound(
                f"The model {name!r} does not exist: GET /v1/models lists the models.",
                param="model",
                code="model_not_found",
            )
        return found

    def _engine(self, model: Loadable, deadline: float) -> str:
        """URL of the model's engine once it answers: an engine that has just died is loaded again."""
        while not is_alive(url := self._loaded(model, deadline)):
            if deadline <= time.monotonic():
                raise still_loading(model, "loaded, but its engine does not answer")
            time.sleep(READY_SECONDS)
        return url

    def _loaded(self, model: Loadable, deadline: float) -> str:
        need = self.catalog.need(model.source)
        check_fits(model, need, self.budget, self._pinned_bytes)
        with self._changed:
            while not self._closing:
                slot = self._slots.get(model.name) or self._begin(model, need)
                if slot is not None and slot.state == "ready" and slot.part.alive:
                    return slot.part.url
                left = min(deadline - time.monotonic(), self._pause(model))
                if deadline <= time.monotonic():
                    if slot is not None:
                        raise still_loading(model, slot.state)
                    held = {each.model.name: each.need.total for each in self._slots.values()}
                    raise no_room(model, need, self.budget, self._pinned_bytes, held)
                self._changed.wait(max(left, 0.001))
                if slot is not None and slot.error is not None:
                    raise slot.error
        raise Unavailable("The supervisor is shutting down.", code="shutting_down")

    def _begin(self, model: Loadable, need: MemoryNeed) -> OnDemandEngine | None:
        """Starts an engine; None if there is a pause or no room yet."""
        failure = self._failures.get(model.name)
        if failure is not None and failure.until > time.monotonic():
            if failure.error is not None:
                raise failure.error
            return None
        if not self._make_room(need):
            return None
        slot = OnDemandEngine(model, need, self._make_part(model, need, self._running()))
        self._slots[model.name] = slot
        thread = threading.Thread(target=self._watch, args=(slot,), name=slot.part.name, daemon=True)
        self._threads.add(thread)
        thread.start()
        return slot

    def _running(self) -> list[Part]:
        return [*(part for part, _ in self._pinned), *self.parts]

    def _make_room(self, need: MemoryNeed) -> bool:
        """Whether there is room. Otherwise idle engines begin to end, if that makes enough room."""
        missing = self.used + need.total - self.budget
        if missing <= 0:
            return True
        missing -= sum(slot.need.total for slot in self._slots.values() if slot.leaving.is_set())
        idle = sorted(
            (slot for slot in self._slots.values() if slot.replaceable), key=lambda slot: -slot.idle
        )
        if missing > sum(slot.need.total for slot in idle):
            return False
        for slot in idle:
            if missing > 0:
                log.info(f"model {slot.model.name} is unloaded to make room", extra={"part": slot.part.name})
                slot.leaving.set()
                missing -= slot.need.total
        return False

    def _watch(self, slot: OnDemandEngine) -> None:
        """Life of an engine: waits until it is ready, follows its load, and stops it."""
        part = slot.part
        part.begin(self.config, self.on_change)
        deadline = time.monotonic() + self.config.start_seconds
        late = False
        while part.alive and not late and not slot.leaving.wait(READY_SECONDS):
            if is_ready(part.url):
                self._set_ready(slot)
                self._follow(slot)
            late = slot.ready_at is None and time.monotonic() > deadline
        wanted = slot.leaving.is_set()
        part.end(self.config.stop_seconds)
        if late:
            part.ended = f"was not ready within {self.config.start_seconds:g} s"
        with self._changed:
            del self._slots[slot.model.name]
            self._threads.discard(threading.current_thread())
            if not wanted:
                self._note_failure(slot)
            self._changed.notify_all()
        self.on_change()

    def _set_ready(self, slot: OnDemandEngine) -> None:
        with self._changed:
            slot.ready_at = time.monotonic()
            self._changed.notify_all()
        self.on_change()

    def _follow(self, slot: OnDemandEngine) -> None:
        """Until the engine ends or is to end."""
        assert slot.ready_at is not None
        while slot.part.alive and not slot.leaving.wait(LOAD_SECONDS):
            report = read_load(slot.part.url)
            if report is None:
                continue
            with self._changed:
                slot.busy, slot.idle = report.busy, report.idle
                if not slot.busy and slot.idle >= self.config.idle_seconds:
                    log.info(f"model {slot.model.name} is idle and unloaded", extra={"part": slot.part.name})
                    slot.leaving.set()
                if time.monotonic() - slot.ready_at > STABLE_SECONDS:
                    self._failures.pop(slot.model.name, None)
                self._changed.notify_all()

    def _note_failure(self, slot: OnDemandEngine) -> None:
        name, config = slot.model.name, self.config
        count = (self._failures[name].count if name in self._failures else 0) + 1
        pause = min(config.restart_seconds * 2 ** (count - 1), config.longest_restart_seconds)
        if slot.ready_at is None:
            slot.error = Unavailable(
                f"Loading the model {name!r} failed: the engine {slot.part.ended}. {last_error(slot.part.name)}"
                f"See `rondo logs {slot.part.name}`. The next attempt is possible in {pause:g} s.",
                param="model",
                code="model_load_failed",
            )
        log.warning(f"engine of the model {name} {slot.part.ended}", extra={"part": slot.part.name})
        self._failures[name] = LoadFailure(count, time.monotonic() + pause, slot.error)

    def _pause(self, model: Loadable) -> float:
        """Longest time until a waiting request looks again."""
        failure = self._failures.get(model.name)
        return 1.0 if failure is None else min(1.0, max(0.0, failure.until - time.monotonic()) or 1.0)

    def _bytes_of(self, source: str) -> int:
        try:
            return self.catalog.need(source).total
        except RondoError as error:
            log.warning(f"unknown memory of a pinned engine: {error}", extra={"model": source})
            return 0

    def _as_adapter(self, model: Loadable, name: str, deadline: float) -> list[str]:
        """URLs of engines of the base model that serve the adapter as `name`; none if the base is not loaded and there
        are merged weights."""
        source = self._base_of(model)
        urls = self._serving(source)
        if not urls and model.source:
            return []
        if not urls:
            base = next((each for each in self.catalog.models() if each.source == source), None)
            if base is None:
                raise NotFound(
                    f"The base {model.base} of the adapter {model.name!r} is not a model of this machine.",
                    param="model",
                    code="model_not_found",
                )
            urls = [self._engine(base, deadline)]
        with self._adapters:
            for url in urls:
                while not is_ready(url) and time.monotonic() < deadline:
                    time.sleep(READY_SECONDS)  # a pinned engine may be starting
                load_adapter(url, name, model.adapter or "", self._keys, deadline - time.monotonic())
        return urls

    def _base_of(self, model: Loadable) -> str:
        """`source` of an adapter's base, which the adapter names by its folder or by its name."""
        base = model.base or ""
        named = (each for each in self.catalog.models() if base in (each.source, *each.names) and each.source)
        return next((each.source for each in named), base)

    def _serving(self, source: str) -> list[str]:
        """URLs of running engines of a model."""
        urls = [part.url for part, own in self._pinned if own == source and part.alive]
        slots = list(self._slots.values())
        return urls or [
            slot.part.url for slot in slots if slot.model.source == source and slot.state == "ready"
        ]

    def _row(self, model: Loadable) -> dict[str, Any]:
        slot, failure = self._slots.get(model.name), self._failures.get(model.name)
        error = None if slot is not None or failure is None else failure.error
        state = "unloaded" if error is None else "failed"
        return {
            "id": model.name,
            "aliases": list(model.aliases),
            "created": model.created,
            "state": state if slot is None else slot.state,
            "url": slot.part.url if slot is not None and slot.state == "ready" else None,
            "bytes": slot.need.total if slot is not None else self._estimate(model),
            "parent": None if model.source or model.base is None else model.base.rpartition("/")[2],
            "error": None if error is None else error.message,
        }

    def _estimate(self, model: Loadable) -> int | None:
        try:
            return self.catalog.need(model.source).total if model.source else None
        except RondoError:
            return None


def _named(models: Sequence[Loadable], name: str) -> Loadable | None:
    found = next((each for each in models if name == each.name), None)
    return found or next((each for each in models if name in each.aliases), None)
