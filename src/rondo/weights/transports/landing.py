"""Memory for versions that come from other hosts: segments of this process, used again once they are released."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rondo.weights.manifest import Manifest, SegmentLayout
from rondo.weights.transports.segment import Held, WeightSegment, claim, discard

PREFIX = "rondo-weights-"


class Landing:
    """Allocated on first use. A version lands in memory that no engine uses: at most one copy beside the one in use."""

    def __init__(self, place: str = "/dev/shm") -> None:
        self._place, self._lock = place, threading.Lock()
        self._folder: Path | None = None
        self._handle: int | None = None
        self._made = 0
        self._free: list[WeightSegment] = []

    def take(self, layout: SegmentLayout, config: Mapping[str, Any], manifest: Manifest) -> WeightSegment:
        """A segment in which the version is announced, for the engines of this host."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._place))
                self._handle = claim(self._folder)
            for segment in self._free:
                if segment.layout.header == layout.header and segment.begin(manifest, 0.0):
                    self._free.remove(segment)
                    return segment
            self._made += 1
            number = self._made
        made = WeightSegment(self._folder / str(number), layout, config, create=True)
        made.begin(manifest, 0.0)
        return made

    def held(self, segment: WeightSegment, version: int, nbytes: int) -> Held:
        return Held(segment.folder, version, nbytes, lambda: self.give(segment))

    def give(self, segment: WeightSegment) -> None:
        with self._lock:
            self._free.append(segment)

    def close(self) -> None:
        with self._lock:
            self._free.clear()
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None
            if self._folder is not None:
                discard(self._folder)
                self._folder = None
