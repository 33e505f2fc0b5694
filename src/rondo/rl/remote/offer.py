"""A version of the policy's weights under the addresses of every transport."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

Route = Literal["shm", "http", "store", "folder"]


@dataclass
class WeightOffer:
    """`source` is the address of a segment of this host, or empty if there is none; `serve` returns the address under
    which a host reads it over HTTP, and `save` writes the model folder when an engine needs it. `permitted` raises an
    error if no engine may switch to the version."""

    version: int
    source: str
    serve: Callable[[str], str]
    save: Callable[[], Path]
    only: Route | None = None
    """The configured transport."""
    store: str = ""
    """Address of the store that holds the version."""
    permitted: Callable[[], None] = lambda: None
    _folder: Path | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def transports(self, url: str) -> tuple[Route, ...]:
        """Transports in the order in which they are tried for the engine at a URL."""
        if self.only is not None:
            return (self.only,)
        if not self.source:
            return ("folder",)
        return ("shm", "http", "folder") if is_local(url) else ("http", "folder")

    def place(self, transport: Route, url: str) -> Mapping[str, Any]:
        """The `update_info` of a transport for the engine at a URL."""
        if transport == "shm":
            return {"source": self.source}
        if transport == "http":
            return {"source": self.serve(url)}
        if transport == "store":
            return {"source": self.store}
        with self._lock:
            if self._folder is None:
                self._folder = self.save()
        return {"path": str(self._folder)}


def is_local(url: str) -> bool:
    """Whether the host of a URL is an address of this machine: only such an address can be bound."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, *_, address in found)


def address_towards(url: str) -> str:
    """Address of this machine from which packets to a URL are sent. No packet is sent here."""
    parts = urlsplit(url)
    family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def _can_bind(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True
