"""The supervisor's engines on demand with fake engines, for tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rondo.base.errors import RondoError
from rondo.supervisor.calls import EngineKeys
from rondo.supervisor.catalog import Loadable, MemoryNeed
from rondo.supervisor.config import UpConfig
from rondo.supervisor.on_demand import OnDemand
from rondo.supervisor.part import Part
from rondo.supervisor.parts import part_name
from support.ports import free_port

MIB = 1 << 20
FAKE = Path(__file__).with_name("fake_engine.py")
KEYS = EngineKeys("api", "admin")


class FakeFleet:
    """A catalog of fake engines, and the engines that run. `sizes` are MiB by model."""

    def __init__(self, folder: Path, sizes: dict[str, int], budget: int, **settings: Any) -> None:
        self.folder, self.sizes = folder, sizes
        self.extra: list[Loadable] = []
        for name in sizes:
            (folder / name).mkdir(parents=True)
        quick = {"restart_seconds": 0.2, "longest_restart_seconds": 0.4, "stop_seconds": 30.0}
        config = UpConfig(**(quick | settings))
        self.pinned: list[tuple[Part, str]] = []
        self.on_demand = OnDemand(self, config, budget * MIB, self.pinned, self.part, KEYS)

    def models(self, fresh: bool = False) -> list[Loadable]:
        return [*(Loadable(name, name, (f"{name}-hash",)) for name in self.sizes), *self.extra]

    def need(self, source: str) -> MemoryNeed:
        if source not in self.sizes:
            raise RondoError(f"no model {source}")
        return MemoryNeed(self.sizes[source] * MIB, 0, 0)

    def part(self, model: Loadable, need: MemoryNeed, others: Any) -> Part:
        port, folder = free_port(), self.folder / model.source
        command = [sys.executable, "-S", str(FAKE), str(port), ",".join(model.names), str(folder)]
        return Part(
            part_name(model.name), command, {}, f"http://127.0.0.1:{port}", model.name, restarted=False
        )

    def starts(self, name: str) -> int:
        file = self.folder / name / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def slot(self, name: str) -> Any:
        return self.on_demand._slots[name]

    def pin(self, name: str) -> Part:
        part = self.part(Loadable(name, name), self.need(name), ())
        self.pinned.append((part, name))
        part.begin(self.on_demand.config, lambda: None)
        return part
