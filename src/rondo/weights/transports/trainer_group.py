"""Weights from a trainer that drives vLLM's verbs over gloo: it announces names, types and shapes, and broadcasts
the tensors over a process group in which it is rank 0.

Tensors arrive packed: bytes are concatenated until they exceed the size of a buffer. They are written into memory of
this host, so that engines with any tensor-parallel degree load them from there, and the old version serves meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from rondo.base.errors import ConfigError, Conflict, InvalidRequest, Unavailable
from rondo.models.files.headers import DTYPES
from rondo.weights.checksum import bucket_checksum
from rondo.weights.manifest import Manifest, WeightBucket, layout_of
from rondo.weights.plan.boxes import ByteRun
from rondo.weights.transports.landing import Landing
from rondo.weights.transports.segment import Held

dist: Any = torch.distributed
BUFFER_BYTES = 1 << 30
KNOWN = frozenset(name for name, _ in DTYPES.values())


@dataclass(frozen=True)
class Announced:
    """Tensors in the order in which they are broadcast."""

    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    packed: bool

    @classmethod
    def parse(cls, info: Mapping[str, Any], packed: bool) -> Announced:
        try:
            names = [str(each) for each in info["names"]]
            dtypes = [str(each).removeprefix("torch.") for each in info["dtype_names"]]
            shapes = [tuple(int(size) for size in each) for each in info["shapes"]]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                "update_info announces tensors by names, dtype_names and shapes.", param="update_info"
            ) from error
        if not len(names) == len(dtypes) == len(shapes) or not set(dtypes) <= KNOWN or not names:
            raise InvalidRequest(
                "update_info: names, dtype_names and shapes must be lists of equal length with known types.",
                param="update_info",
            )
        return cls(names, dtypes, shapes, bool(info.get("packed", packed)))


@dataclass
class TrainerGroup:
    """One trainer's group, over gloo."""

    seconds: float = 600.0
    landing: Landing = field(default_factory=Landing)
    _group: Any = None
    _buffer_bytes: int = BUFFER_BYTES
    packed: bool = False

    def connect(self, info: Mapping[str, Any]) -> None:
        """Joins the trainer's group; blocks until all its members are there."""
        if torch.cuda.is_available() and info.get("backend") != "gloo":
            raise ConfigError(
                "a trainer's process group is supported over gloo only: set init_info.backend to gloo and broadcast "
                "from CPU memory, or push a folder.",
                param="init_info",
            )
        try:
            host, port = str(info["master_address"]), int(info["master_port"])
            rank, size = int(info["rank_offset"]), int(info["world_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                "init_info needs master_address, master_port, rank_offset and world_size.", param="init_info"
            ) from error
        self.packed = bool(info.get("packed", False))
        self._buffer_bytes = int(info.get("packed_buffer_size_bytes") or BUFFER_BYTES)
        self._group = gloo_group(host, port, rank, size, self.seconds)

    def receive(self, announced: Announced, config: Mapping[str, Any], version: int) -> Held:
        if self._group is None:
            raise Conflict("no trainer is connected: POST /init_weight_transfer_engine first.")
        tensors = zip(announced.names, announced.dtypes, announced.shapes, strict=True)
        layout = layout_of(tensors)
        places = [layout.tensors[name] for name in announced.names]
        buckets = tuple(WeightBucket(0, (ByteRun(each.start, each.stop - each.start),)) for each in places)
        segment = self.landing.take(layout, config, Manifest("", version, buckets))
        number = 0
        try:
            for part in _chunks(
                [each.stop - each.start for each in places], announced.packed, self._buffer_bytes
            ):
                buffer = torch.empty(sum(part), dtype=torch.uint8)
                self._group.broadcast([buffer], _from_first()).wait()
                data, start = buffer.numpy(), 0
                for size in part:
                    place = places[number]
                    segment.data[place.start : place.stop] = data[start : start + size]
                    segment.complete(number, version, bucket_checksum(segment.data, buckets[number].runs))
                    start, number = start + size, number + 1
        except RuntimeError as error:
            self.landing.give(segment)
            self._group = None
            raise Unavailable(
                f"the trainer's broadcast failed: {error}. The weights in use are unchanged; connect again.",
                code="link_lost",
            ) from error
        return self.landing.held(segment, version, sum(bucket.nbytes for bucket in buckets))


def gloo_group(host: str, port: int, rank: int, size: int, seconds: float = 600.0) -> Any:
    """A group of its own: the process may have another one."""
    patience = timedelta(seconds=seconds)
    try:
        store = dist.TCPStore(host, port, size, rank == 0, patience, wait_for_workers=False)
        return dist.ProcessGroupGloo(dist.PrefixStore("rondo-weights", store), rank, size, patience)
    except RuntimeError as error:
        raise Unavailable(
            f"the trainer at {host}:{port} was not reached: {error}", code="link_lost"
        ) from error


def send(tensors: Iterator[tuple[str, Tensor]], group: Any, buffer_bytes: int = BUFFER_BYTES) -> None:
    """The trainer's side: broadcasts packed tensors from rank 0."""
    waiting: list[Tensor] = []
    for _, tensor in tensors:
        waiting.append(tensor.detach().contiguous().view(-1).view(torch.uint8))
        if sum(each.numel() for each in waiting) > buffer_bytes:
            group.broadcast([torch.cat(waiting)], _from_first()).wait()
            waiting = []
    if waiting:
        group.broadcast([torch.cat(waiting)], _from_first()).wait()


def _chunks(sizes: Sequence[int], packed: bool, most: int) -> Iterator[list[int]]:
    part: list[int] = []
    for size in sizes:
        part.append(size)
        if not packed or sum(part) > most:
            yield part
            part = []
    if part:
        yield part


def _from_first() -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    return options
