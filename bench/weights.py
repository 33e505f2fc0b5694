"""Time of a weight push next to one copy of the same bytes in memory, which is its limit.

The switch of shared tensors (same process), a push through shared memory to an engine process, verified and not, and
loading the folder from disk, as a restart would. `--shape`: 0.6B or 3B alone; `--steps`: pushes of each row.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# ruff: isort: off
from common import Report, arguments, say
import numpy as np
import torch

# ruff: isort: on
from rondo.models import save
from rondo.models.families import parse
from rondo.models.files.checkpoint import build, load
from rondo.models.files.mapping import to_hf
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Directory
from rondo.weights.in_place import InPlace, Receiver
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from rondo.weights.transports.segment import Held
from rondo.weights.transports.source import WeightSource, fetch

SHAPES = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 768, "vocab_size": 8192},
    "0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "vocab_size": 151_936},
    "3B": {"hidden_size": 2048, "num_hidden_layers": 36, "intermediate_size": 11_008, "vocab_size": 151_936},
}
HEADS = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}


class Far:
    """An engine's side in a process of its own: fetches, maps the model and switches."""

    def __init__(self, verify: bool) -> None:
        self._own, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_receive, args=(theirs, verify), daemon=True)
        self._process.start()
        self._own.recv()

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None:
        self._own.send(dict(update_info))
        self._own.recv()

    def finish_weight_update(self, weight_version: Any = None, requests: Any = "retain") -> None:
        self._own.send(None)
        self._own.recv()

    def abort_weight_update(self) -> None: ...

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--steps", type=int, default=3)
    given, rest = parser.parse_known_args()
    options = arguments(__doc__ or "", rest)
    shapes = [given.shape] if given.shape else ["tiny"] if options.quick else ["0.6B", "3B"]
    report = Report("a push of all weights")
    for shape in shapes:
        measure(report, shape, given.steps)
    report.show(options.json)


def measure(report: Report, shape: str, steps: int) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, **HEADS}
    config |= {
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "rope_theta": 1e6,
        "torch_dtype": "bfloat16",
    }
    config |= SHAPES[shape]
    model = build(parse(config)).to_empty(device="cpu").to(torch.bfloat16)
    model.tie()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(1).to(parameter.dtype).expand_as(parameter))
    tensors = dict(to_hf(model))
    size = sum(each.nbytes for each in tensors.values())
    figures = {
        "shared tensors, same process": lambda: _switch_seconds(tensors),
        "to another process": lambda: _push_seconds(config, tensors, False, steps),
        "to another process, verified": lambda: _push_seconds(config, tensors, True, steps),
        "loaded from disk": lambda: _disk_seconds(model),
    }
    for name, seconds in figures.items():
        say(f"{shape}: {name}")
        figure = f"{shape}, {size / 1e9:.2f} GB: {name}, ms"
        # A copy before each, because the memory of a virtual machine is not equally fast all the time.
        report.limit[figure] = 1000 * _copy_seconds(size)
        report.ours[figure] = 1000 * seconds()
        report.ratios[figure] = float(report.limit[figure]) / report.ours[figure]
    report.notes.append("limit: one copy of the same bytes in memory")


def _push_seconds(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], verify: bool, steps: int
) -> float:
    far = Far(verify)
    publisher = Publisher("bench", config, WeightsConfig())
    try:
        publisher.register(lambda: (Shard(name, tensor) for name, tensor in tensors.items()))
        times = [publisher.push(version, {"far": far}).seconds for version in range(1, steps + 3)]
    finally:
        far.close()
        publisher.close()
    return statistics.median(times[2:])


def _switch_seconds(tensors: dict[str, torch.Tensor]) -> float:
    class Engine:
        def start_weight_update(self) -> None: ...

        def finish_weight_update(self, version: int) -> None: ...

    push = InPlace("bench", tensors.items, Directory())
    receiver = Receiver("engine", Engine(), tensors.items)
    return _best(lambda: _update(push, receiver))


def _update(push: InPlace, receiver: Receiver) -> None:
    with push.update(push._version + 1, [receiver]):
        pass


def _copy_seconds(size: int) -> float:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return _best(lambda: ctypes.memmove(target.ctypes.data, source.ctypes.data, size))


def _disk_seconds(model: Any) -> float:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        save(model, Path(folder) / "model")

        def read() -> None:
            sum(
                float(each.float().sum())
                for each in load(Path(folder) / "model").parameters()
                if each.numel() < 1e7
            )

        return _best(read, 1)


def _best(work: Callable[[], object], count: int = 5) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _receive(pipe: Connection, verify: bool) -> None:
    used: Held | None = None
    pipe.send("ready")
    while True:
        info = pipe.recv()
        held = fetch(WeightSource.parse(info["source"]), info["version"], verify)
        model = load(held.folder)
        pipe.send(None)
        pipe.recv()
        if used is not None:
            used.release()
        used = held
        del model
        pipe.send(None)


if __name__ == "__main__":
    main()
