"""Models of this machine for the supervisor: RONDO_HOME/models, results of jobs, and pulled models."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from rondo.base.errors import RondoError
from rondo.base.storage.gguf import is_gguf
from rondo.engine.config import EngineConfig
from rondo.jobs.folders import aliases_of, job_folders, name_of_job
from rondo.jobs.job import Job
from rondo.models.files.headers import read_config
from rondo.models.store import list_models, list_pulled, name_of, resolve, summary, written_at
from rondo.plan.engine_memory import DEFAULT_CACHE_BYTES, engine_memory
from rondo.plan.machine import device_at_hand
from rondo.plan.sizes.hf import shape_of
from rondo.plan.sizes.model import ModelShape
from rondo.supervisor.catalog import Loadable, MemoryNeed

LISTED_SECONDS = 2.0
"""Time for which the list of models is not read again."""
FLOATS = frozenset(["float32", "bfloat16", "float16"])
KEPT_GGUF = frozenset(["F32", "F16", "BF16", "Q8_0", "Q4_0"])
"""Types of weights in a GGUF file that the engine does not convert."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}


class MachineCatalog:
    def __init__(self, engine: EngineConfig) -> None:
        self.engine = engine
        device = device_at_hand(engine.device)
        self.kind = "cpu" if device is None else device.kind
        self.memory = None if device is None else int(device.memory)
        """Memory of the device, or the limit of the process's control group."""
        self._lock = threading.Lock()
        self._listed: tuple[float, list[Loadable]] = (-LISTED_SECONDS, [])

    def models(self, fresh: bool = False) -> list[Loadable]:
        with self._lock:
            read, found = self._listed
            if fresh or time.monotonic() - read > LISTED_SECONDS:
                found = list({model.name: model for model in (*_jobs(), *_pulled(), *_named())}.values())
                self._listed = time.monotonic(), found
            return found

    def source_of(self, model: str) -> str:
        """`source` of a model by its name, folder or job; the text itself if there is no such model here."""
        found = next((each for each in self.models() if model in each.names and each.source), None)
        if found is not None:
            return found.source
        try:
            return str(resolve(model)) if "/" not in model or Path(model).expanduser().exists() else model
        except RondoError:
            return model

    def need(self, source: str) -> MemoryNeed:
        folder = Path(source)
        return _need(source, written_at(folder) if folder.exists() else 0.0, self.engine, self.kind)


def shown_name(source: str) -> str:
    """Name under which an engine serves a model."""
    return name_of(Path(source)) if Path(source).exists() else source


@lru_cache(1024)
def _need(source: str, written: float, engine: EngineConfig, kind: str) -> MemoryNeed:
    found = summary(Path(source))
    own = 4 if "float32" in found.dtypes else 2
    weights = found.weight_bytes
    if engine.dtype != "auto" and set(found.dtypes) <= FLOATS:
        own = BYTES[engine.dtype]
        weights = found.parameters * own
    elif is_gguf(found.path) and not set(found.dtypes) <= KEPT_GGUF:
        weights = max(weights, found.parameters * own)  # the engine dequantizes the weights
    limit = engine.kv_cache_bytes
    memory = engine_memory(
        weights,
        _shape(Path(source)),
        "cuda" if kind == "cuda" else "cpu",
        value_bytes=BYTES.get(engine.kv_dtype, own),
        requests=engine.max_num_seqs,
        length=engine.max_model_len,
        step_tokens=engine.max_step_tokens,
        cache=limit,
    )
    bounded = limit is not None or engine.num_blocks is not None
    exact = kind == "cuda" or memory.cache > DEFAULT_CACHE_BYTES
    flags = () if bounded or not exact else (f"--engine.kv_cache_bytes={memory.cache}",)
    return MemoryNeed(memory.weights, memory.cache, memory.overhead, flags)


def _shape(folder: Path) -> ModelShape | None:
    """None for families whose sizes the planner does not read."""
    try:
        return shape_of(read_config(folder), folder.name)
    except RondoError:
        return None


def _named() -> Iterator[Loadable]:
    for name, path in list_models():
        yield Loadable(name, str(path), created=int(written_at(path)))


def _pulled() -> Iterator[Loadable]:
    for snapshot in list_pulled():
        yield Loadable(snapshot.name, str(snapshot.path), created=int(snapshot.pulled))


def _jobs() -> Iterator[Loadable]:
    for folder in job_folders():
        job = Job(folder)
        whole, adapter = job.export / "config.json", job.adapter / "adapter_config.json"
        if not whole.is_file() and not adapter.is_file():
            continue
        names = [name_of_job(folder), *aliases_of(folder), job.name]
        label, *others = [name for name in names if name]
        origin = job.origin()
        yield Loadable(
            label,
            str(job.export) if whole.is_file() else "",
            tuple(others),
            int(job.started),
            str(job.adapter) if adapter.is_file() else None,
            str(origin["base"]) if origin.get("base") else None,
        )
