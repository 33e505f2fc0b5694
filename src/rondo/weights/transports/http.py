"""Weights over HTTP, from `rondo weights serve` on another host: byte ranges of a version, read in parallel."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rondo.base.errors import ModelError, NotFound, RondoError, Unavailable
from rondo.weights.checksum import Bytes, bucket_checksum, bytes_of
from rondo.weights.manifest import Manifest, SegmentLayout, WeightBucket, layout_from
from rondo.weights.plan.boxes import ByteRun
from rondo.weights.transports.deltas import apply, fits, single_run
from rondo.weights.transports.landing import Landing
from rondo.weights.transports.segment import Held, WeightSegment, corrupted

KEY = "RONDO_WEIGHTS_KEY"
READER = "x-reader"
"""Header with the name of a fetch, for which the sender holds the version until its end."""
LEAVE_SECONDS = 5.0
READERS = 4


@dataclass(frozen=True)
class RemoteVersion:
    layout: SegmentLayout
    config: dict[str, Any]
    manifest: Manifest
    delta_base: str | None
    """Checksum of the version from which the owner has a delta."""


@dataclass(frozen=True)
class RemoteOwner:
    """A version on another host; `url` is http://host:port/v1/weights/MODEL. The key is RONDO_WEIGHTS_KEY, or the
    password in the URL."""

    url: str
    version: int | None
    seconds: float = 600.0
    reader: str = ""

    @property
    def place(self) -> str:
        """The URL without its key, for messages."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    def describe(self) -> RemoteVersion:
        answer = self._ask("GET", f"/{'latest' if self.version is None else self.version}", None)
        found = json.loads(self._whole(answer))
        layout = layout_from(base64.b64decode(found["header"]))
        manifest = Manifest.parse(json.dumps(found["manifest"]))
        return RemoteVersion(layout, found["config"], manifest, found.get("delta_base"))

    def read(self, segment: WeightSegment, runs: Sequence[ByteRun], expected: int, number: int) -> int:
        """Reads a bucket into the segment and verifies it."""
        places = [[run.offset, run.length, run.count, run.stride] for run in runs]
        answer = self._ask("POST", f"/{self.version}/read", json.dumps({"runs": places}))
        for run in runs:
            _receive(answer, segment.data, run)
        self._verify(segment, runs, expected, number)
        segment.complete(number, self.version or 0, expected)
        return sum(run.nbytes for run in runs)

    def read_delta(
        self, segment: WeightSegment, base: Bytes, bucket: WeightBucket, expected: int, number: int
    ) -> int:
        """Makes a bucket of the base's bytes and the changed elements; reads it whole if it has no delta."""
        run = single_run(bucket)
        delta = b""
        if run is not None:
            delta = self._whole(self._ask("POST", f"/{self.version}/delta", json.dumps({"bucket": number})))
        if run is None or not delta:
            return self.read(segment, bucket.runs, expected, number)
        data = segment.data[run.offset : run.offset + run.length]
        data[:] = base[run.offset : run.offset + run.length]
        try:
            apply(delta, data)
        except ValueError as error:
            raise corrupted(number, self.version or 0, self.place) from error
        self._verify(segment, bucket.runs, expected, number)
        segment.complete(number, self.version or 0, expected)
        return len(delta)

    def leave(self) -> None:
        """Ends the hold of this fetch at the sender, which otherwise ends some time after the last request."""
        with suppress(RondoError):
            replace(self, seconds=min(self.seconds, LEAVE_SECONDS))._ask("POST", f"/{self.version}/leave", "")

    def _whole(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise _lost(self.place, error) from error

    def _verify(self, segment: WeightSegment, runs: Sequence[ByteRun], expected: int, number: int) -> None:
        if bucket_checksum(segment.data, runs) != expected:
            raise corrupted(number, self.version or 0, self.place)

    def _ask(self, method: str, path: str, body: str | None) -> http.client.HTTPResponse:
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(at.hostname or "", at.port or 80, timeout=self.seconds)
        headers = {"authorization": f"Bearer {at.password or os.environ.get(KEY, '')}", READER: self.reader}
        try:
            connection.request(method, at.path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise _lost(self.place, error) from error
        if answer.status == 404:
            raise NotFound(f"{self.place} has no version {self.version}.", param="source")
        if answer.status not in (200, 204):
            raise Unavailable(
                f"{self.place} refused with status {answer.status}: {answer.read(500).decode(errors='replace')}"
            )
        return answer


def fetch_http(
    landing: Landing,
    url: str,
    version: int | None,
    seconds: float = 600.0,
    base: Path | None = None,
) -> Held:
    """Brings a whole version to this host. `base` is the folder of the version in use, to which a delta may apply."""
    reader = secrets.token_hex(8)
    found = RemoteOwner(url, version, seconds, reader).describe()
    remote = RemoteOwner(url, found.manifest.version, seconds, reader)
    try:
        return _fetched(landing, remote, found, base)
    finally:
        remote.leave()


def _fetched(landing: Landing, remote: RemoteOwner, found: RemoteVersion, base: Path | None) -> Held:
    manifest = found.manifest
    segment = landing.take(found.layout, found.config, manifest)
    known = None if base is None or found.delta_base is None else fits(base, found.layout, found.delta_base)
    try:
        reads: list[Callable[[], int]]
        parts = list(enumerate(zip(manifest.buckets, manifest.checksums, strict=True)))
        if known is not None:
            reads = [partial(remote.read_delta, segment, known, b, total, i) for i, (b, total) in parts]
        else:
            reads = [partial(remote.read, segment, b.runs, total, i) for i, (b, total) in parts]
        with ThreadPoolExecutor(READERS) as pool:
            moved = sum(pool.map(lambda read: read(), reads))
    except OSError as error:
        landing.give(segment)
        raise _lost(remote.place, error) from error
    except BaseException:
        landing.give(segment)
        raise
    return landing.held(segment, manifest.version, moved)


def _receive(answer: http.client.HTTPResponse, data: Bytes, run: ByteRun) -> None:
    contiguous = run.count == 1
    target = bytes_of(data, run) if contiguous else np.empty(run.nbytes, np.uint8)
    view = target.data
    while view:
        try:
            count = answer.readinto(view)
        except http.client.HTTPException as error:
            raise OSError(f"the connection was cut: {error}") from error
        if not count:
            raise OSError("the connection was cut")
        view = view[count:]
    if not contiguous:
        end = run.offset + (run.count - 1) * run.stride + run.length
        places = np.lib.stride_tricks.as_strided(
            data[run.offset : end], (run.count, run.length), (run.stride, 1), writeable=True
        )
        places[:] = target.reshape(run.count, run.length)


def _lost(url: str, error: Exception) -> Unavailable | ModelError:
    return Unavailable(f"{url}: {error}. The weights in use are unchanged.", code="link_lost")
