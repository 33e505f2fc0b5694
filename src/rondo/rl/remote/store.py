"""Versions of a run in a folder or an object store, the newest one and the one before it while engines switch."""

from __future__ import annotations

from contextlib import suppress

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import get_logger
from rondo.weights.manifest import NAME
from rondo.weights.transports.objects import open_store, put, versions_in
from rondo.weights.transports.source import WeightSource

log = get_logger(__name__)


class VersionStore:
    """`url` is an address as of `transports/source.py` that no other run uses."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def newest(self) -> int:
        return max(versions_in(self.url), default=0)

    def put(self, source: str) -> None:
        """Write the version in a segment of this host."""
        put(WeightSource.parse(source).folder, self.url)

    def remove(self, kept: int | None = None) -> None:
        """Remove all versions, or all others than `kept`. The manifest is removed first: a version without it is not
        complete."""
        try:
            store, root = open_store(self.url)
            with suppress(FileNotFoundError):
                for folder in store.ls(root, detail=False):
                    name = folder.rstrip("/").rpartition("/")[2]
                    if name.isdigit() and int(name) != kept:
                        with suppress(FileNotFoundError):
                            store.rm_file(f"{folder}/{NAME}")
                        store.rm(folder, recursive=True)
                if kept is None and "local" in store.protocol:
                    with suppress(OSError):  # it has other files
                        store.rmdir(root)
        except (OSError, RondoError) as error:
            log.warning("old weights stay in the store", extra={"url": self.url, "reason": str(error)})
