"""What each rank of `test_ranks.py` does; a module of its own, so that ranks import no more than they need."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rondo.models.files.checkpoint import build
from rondo.parallel.apply import parallelize
from rondo.parallel.config import LayoutConfig, MemoryConfig
from rondo.parallel.ranks.mesh import join
from rondo.parallel.ranks.world import read_world
from rondo.weights.config import WeightsConfig
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard, shards_of
from rondo.weights.transports.segment import read_segment
from rondo.weights.transports.source import WeightSource, fetch
from support.tiny import tiny_model


def publish(folder: Path, layouts: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Pushes the tiny model from each layout; returns the bytes of the version and those that this rank wrote."""
    found = []
    for number, layout in enumerate(layouts):
        model = tiny_model()
        table = build(model.config).slots()
        mesh = join(LayoutConfig(**layout), read_world(), model.config, torch.device("cpu"))
        stages = parallelize(model, mesh, MemoryConfig())
        place = folder / str(number)
        place.mkdir(exist_ok=True)
        settings = WeightsConfig(folder=str(place), bucket_bytes=2000)
        publisher = Publisher("tiny", dict(model.config.hf or {}), settings, group=dist.group.WORLD)
        publisher.register(
            lambda stages=stages, table=table: (
                shard for stage in stages for shard in shards_of(stage, table, "decoder.")
            )
        )
        report = publisher.push(1)
        if dist.get_rank() == 0:
            read_segment(publisher.folder / "0", 1, True, 60).release()
        found.append((report.nbytes, report.written))
        publisher.close(keep=True)
        dist.barrier()
    return found


class Engine:
    """A receiver without a model, which follows the segment while it is written."""

    version = 0

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        source = WeightSource.parse(update_info["source"])
        self.held = fetch(source, update_info["version"], seconds=60)

    def finish_weight_update(self, weight_version: Any = None, requests: Any = "retain") -> None:
        self.held.release()
        self.version = weight_version

    def abort_weight_update(self) -> None: ...


def push_with_a_fault(folder: Path, fault: str) -> tuple[str, float, int]:
    """Pushes two versions, the second one with a fault in the last rank; returns this rank's error, the seconds until
    it was raised, and the engine's version."""
    rank, engine = dist.get_rank(), Engine()
    settings = WeightsConfig(folder=str(folder), bucket_bytes=2000)
    publisher = Publisher("m", {}, settings, group=dist.group.WORLD)
    whole = torch.arange(4000.0).view(4, 1000)
    faulty = False

    def shards() -> Iterator[Shard]:
        if faulty and rank == dist.get_world_size() - 1:
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("out of memory")
        yield Shard("w", whole[rank : rank + 1], (4, 1000), (rank, 0))

    publisher.register(shards)
    publisher.push(1, {"e": engine})
    faulty, started, error = True, time.monotonic(), ""
    try:
        publisher.push(2, {"e": engine})
    except Exception as cause:
        error = f"{type(cause).__name__}: {cause}"
    seconds = time.monotonic() - started
    if fault != "killed":
        faulty = False
        publisher.push(2, {"e": engine})
    (folder / f"{rank}.json").write_text(json.dumps([error, seconds, engine.version]))
    if fault == "killed":
        os._exit(0)  # the group has lost a rank
    return error, seconds, engine.version
