"""Registry of the adapters that an engine serves: names, folders, and the weights of loaded adapters.

An adapter is loaded on first use. At most `max_loaded_adapters` are loaded; the least recently used one without holders
is evicted. A request retains its version: loading other content under the same name creates a new version next to the
old one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from rondo.base.errors import ConfigError, InvalidRequest, NotFound, Overloaded
from rondo.base.storage.paths import path_of
from rondo.base.telemetry.log import get_logger
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.streams import resolve_all
from rondo.engine.weights.adapter_reader import AdapterReader
from rondo.models.adapters import CONFIG
from rondo.models.adapters.mixed import AdapterWeights

log = get_logger("rondo.engine")


@dataclass(eq=False)
class LoadedAdapter:
    """One version of an adapter. `key` identifies its content: equal content has the same key, even after an eviction,
    and different content never has."""

    name: str
    version: int
    key: int
    served: AdapterWeights
    nbytes: int
    holders: int = 0
    old: bool = False
    """Whether no name refers to it any more: it is dropped with its last holder."""
    unloaded: bool = False
    """Whether it was unloaded: in addition, requests that have not started may not use it any more."""


@dataclass
class Totals:
    loads: int = 0
    evictions: int = 0


@dataclass
class _Name:
    """An adapter name. `checksum` is of the content last loaded under it; None until then."""

    folder: Path
    edition: int = 0
    """Number of times that its content was replaced."""
    version: int = 0
    checksum: str | None = None
    current: LoadedAdapter | None = None


class Adapters:
    """Adapter registry, usable from any thread. Files are read outside of its lock, so that a step never waits for
    them."""

    def __init__(self, reader: AdapterReader, config: EngineConfig) -> None:
        self.reader = reader
        self.totals = Totals()
        self._max_loaded = config.max_loaded_adapters
        self._dir = folder_of_adapters(config)
        self._names: dict[str, _Name] = {}
        self._removed: set[str] = set()
        self._keys: dict[str, int] = {}
        self._loaded: OrderedDict[LoadedAdapter, None] = OrderedDict()
        self._lock = threading.RLock()
        self._waiters: list[Future[None]] = []

    def names(self) -> list[str]:
        """All available names: loaded adapters, and the folders in `adapters_dir`."""
        with self._lock:
            found = set(self._names)
        if self._dir is not None and self._dir.is_dir():
            found |= {path.name for path in self._dir.iterdir() if self._offers(path.name)}
        return sorted(found)

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return isinstance(name, str) and (name in self._names or self._offers(name))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights of all loaded adapters."""
        return sum(adapter.nbytes for adapter in list(self._loaded))

    @property
    def num_loaded(self) -> int:
        return len(self._loaded)

    def has_room(self, name: str | None) -> bool:
        """Whether `hold` would succeed without waiting."""
        with self._lock:
            known = self._names.get(name or "")
            loaded = name is None or (known is not None and known.current is not None)
            return loaded or self._has_room()

    def held(self, name: str) -> LoadedAdapter | None:
        """Like `hold`, but None if the adapter is not loaded."""
        with self._lock:
            adapter = self._name(name).current
            return None if adapter is None else self._share(adapter)

    def hold(self, name: str) -> LoadedAdapter:
        """Loads the adapter if necessary and holds it until it is released. Raises `Overloaded` if all loaded adapters
        are in use."""
        while True:
            with self._lock:
                known = self._name(name)
                if known.current is not None:
                    return self._share(known.current)
                self._check_room()
                edition = known.edition
            read, content = self.reader.read(known.folder)
            with self._lock:
                if self._names.get(name) is not known:
                    raise unloaded(name)
                if known.edition == edition:
                    return self._share(known.current or self._enter(name, known, read, content))

    def room(self) -> Future[None]:
        """A future that is done when there is room for one more adapter; room is not reserved."""
        waiter: Future[None] = Future()
        with self._lock:
            self._waiters.append(waiter)
            if self._has_room():
                self.wake()
        return waiter

    def wake(self) -> None:
        """Wakes all waiters for room, which check again."""
        with self._lock:
            resolve_all(self._waiters, None)

    def share(self, adapter: LoadedAdapter) -> None:
        """Adds a holder to a held adapter."""
        with self._lock:
            self._share(adapter)

    def release(self, adapter: LoadedAdapter) -> None:
        with self._lock:
            adapter.holders -= 1
            if adapter.holders == 0:
                if adapter.old:
                    self._loaded.pop(adapter, None)
                self.wake()

    def add(self, name: str, folder: str | Path, replace: bool = False) -> None:
        """Reads the adapter, so that errors are raised at once, and registers it under the name."""
        if not name:
            raise InvalidRequest("the adapter needs a name.", param="lora_name")
        self._check_free(name, replace)
        folder = path_of(folder, "lora_path")
        read, content = self.reader.read(folder)
        with self._lock:
            self._check_free(name, replace)
            known = self._names.setdefault(name, _Name(folder))
            known.folder = folder
            self._removed.discard(name)
            if content == known.checksum:
                return
            known.edition += 1
            old, known.current = known.current, None
            if old is not None:
                self._retire(old)
            # Without room it is only registered, and loaded on first use.
            if self._has_room():
                self._enter(name, known, read, content)

    def remove(self, name: str) -> LoadedAdapter | None:
        """Removes the name; the weights are dropped with their last holder. Returns the adapter that was loaded under
        it."""
        with self._lock:
            known = self._name(name)
            del self._names[name]
            self._removed.add(name)
            old, known.current = known.current, None
            if old is not None:
                old.unloaded = True
                self._retire(old)
            self.wake()
            return old

    def drop_idle(self) -> None:
        """Evicts all loaded adapters without holders."""
        with self._lock:
            while any(adapter.holders == 0 for adapter in self._loaded):
                self._evict()

    # The methods below require the lock.

    def _offers(self, name: str) -> bool:
        """Whether `adapters_dir` has an adapter with this name. A name that is a path is never offered."""
        if self._dir is None or name in self._removed or name != Path(name).name or name.startswith("."):
            return False
        # Not Path.is_file, which raises an error for a name that is too long for the file system.
        return os.path.isfile(self._dir / name / CONFIG)

    def _name(self, name: str) -> _Name:
        if name not in self._names:
            if not self._offers(name):
                raise NotFound(
                    f"the adapter {name!r} does not exist here. Load it with load_adapter, or put its folder into "
                    "engine.adapters_dir.",
                    param="adapter",
                    code="model_not_found",
                )
            assert self._dir is not None
            self._names[name] = _Name(self._dir / name)
        return self._names[name]

    def _check_free(self, name: str, replace: bool) -> None:
        if name in self and not replace:
            raise InvalidRequest(
                f"The lora adapter {name!r} has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )

    def _enter(self, name: str, known: _Name, served: AdapterWeights, content: str) -> LoadedAdapter:
        self._check_room()
        if len(self._loaded) >= self._max_loaded:
            self._evict()
        if content != known.checksum:
            known.version, known.checksum = known.version + 1, content
        key = self._keys.setdefault(content, len(self._keys) + 1)
        adapter = LoadedAdapter(name, known.version, key, served, served.nbytes)
        self._loaded[adapter] = None
        known.current = adapter
        self.totals.loads += 1
        facts = {"adapter": name, "version": adapter.version, "bytes": adapter.nbytes}
        log.info("adapter loaded", extra=facts)
        return adapter

    def _share(self, adapter: LoadedAdapter) -> LoadedAdapter:
        adapter.holders += 1
        self._loaded[adapter] = None
        self._loaded.move_to_end(adapter)
        return adapter

    def _retire(self, adapter: LoadedAdapter) -> None:
        adapter.old = True
        if adapter.holders == 0:
            self._loaded.pop(adapter, None)
            self.wake()

    def _check_room(self) -> None:
        if not self._has_room():
            raise Overloaded(
                f"all {self._max_loaded} adapters that may be loaded at once are in use "
                "(engine.max_loaded_adapters). Try again later.",
                code="adapters_busy",
            )

    def _has_room(self) -> bool:
        return len(self._loaded) < self._max_loaded or any(not adapter.holders for adapter in self._loaded)

    def _evict(self) -> None:
        idle = next(adapter for adapter in self._loaded if adapter.holders == 0)
        del self._loaded[idle]
        idle.old = True
        self._names[idle.name].current = None
        self.totals.evictions += 1


def folder_of_adapters(config: EngineConfig) -> Path | None:
    if config.adapters_dir is None:
        return None
    folder = path_of(config.adapters_dir, "engine.adapters_dir")
    if not folder.is_dir():
        raise ConfigError(
            f"adapters_dir is {folder}, which is not a folder. Make it, or name another.",
            param="adapters_dir",
        )
    return folder


def unloaded(name: str) -> NotFound:
    return NotFound(
        f"the adapter {name!r} was unloaded while the request waited. Load it again, or ask for another model.",
        param="model",
        code="model_not_found",
    )
