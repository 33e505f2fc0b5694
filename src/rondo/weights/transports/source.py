"""Addresses of a version of the weights, and the transport of each kind:

- `/a/folder` or `file:/a/folder`: a model folder that this host reads
- `shm:/dev/shm/rondo-weights-x/0`: a segment of this host
- `http://host:port/v1/weights/m`: `rondo weights serve` on another host
- `store:/a/folder` or `s3://bucket/prefix`: a folder or an object store with a folder of each version
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rondo.base.errors import InvalidRequest
from rondo.base.storage.paths import path_of
from rondo.weights.transports.http import fetch_http
from rondo.weights.transports.landing import Landing
from rondo.weights.transports.objects import fetch_objects
from rondo.weights.transports.segment import Held, read_segment

KINDS = ("file", "shm", "http", "store", "s3")


@dataclass(frozen=True)
class WeightSource:
    kind: str
    place: str

    @classmethod
    def parse(cls, text: str) -> WeightSource:
        kind, colon, place = text.partition(":")
        if not colon or "/" in kind:
            kind, place = "file", text
        if kind not in KINDS or not place:
            raise InvalidRequest(
                f"update_info.source {text[:200]!r} is none of {', '.join(f'{kind}:...' for kind in KINDS)}.",
                param="source",
            )
        return cls(kind, place)

    @property
    def folder(self) -> Path:
        """Its folder on this host; ranks may have another working directory."""
        return path_of(self.place, "source").absolute()


_landing = Landing()


def fetch(
    source: WeightSource,
    version: int | None,
    verify: bool = True,
    seconds: float = 600.0,
    base: Path | None = None,
) -> Held:
    """Brings a version to this host and verifies it. On an error nothing has changed. `base` is the folder of the
    version in use: a holder with deltas sends only what has changed since."""
    if source.kind == "shm":
        if version is None:
            raise InvalidRequest("No version given: set update_info.version.", param="update_info")
        return read_segment(source.folder, version, verify, seconds)
    if source.kind == "http":
        return fetch_http(_landing, f"http:{source.place}", version, seconds=seconds, base=base)
    if source.kind in ("store", "s3"):
        return fetch_objects(_landing, f"{source.kind}:{source.place}", version)
    return Held(source.folder, version or 0)
