"""Cluster of a plan: its devices, their memory, and the links between them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rondo.base.errors import ConfigError
from rondo.base.units import GIB


@dataclass(frozen=True)
class Gpu:
    """A device. `peaks` are dense operations per second by precision, as published by the vendor; `sustained` is the
    share of them that one large product reaches. Rates are bytes per second, links in one direction.
    """

    name: str
    memory: float
    peaks: Mapping[str, float]
    bandwidth: float
    link: float
    per_node: int = 8
    network: float = 50e9
    sustained: float = 0.75
    host_link: float = 25e9
    host_memory: float = 200 * GIB
    """One device's share of the host memory."""

    def peak(self, precision: str) -> float:
        if precision in self.peaks:
            return self.peaks[precision]
        return self.peaks["bf16"]


@dataclass(frozen=True)
class Cluster:
    """`gpus` devices, of which `per_node` are connected by fast links; across nodes each device has a share of the
    network.
    """

    gpu: Gpu
    gpus: int

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ConfigError("gpus must be above 0.", param="gpus")
        if self.gpu.per_node < 1:
            raise ConfigError("per_node must be above 0.", param="per_node")
        for field in ("memory", "bandwidth", "link", "network"):
            if getattr(self.gpu, field) <= 0:
                raise ConfigError(f"{field} of {self.gpu.name} must be above 0.", param=field)

    @property
    def node(self) -> int:
        return min(self.gpu.per_node, self.gpus)

    def link(self, ranks: int, stride: int = 1) -> float:
        """Bytes per second of each rank in a ring of `ranks` with distance `stride`, limited by the slowest link."""
        return self.gpu.link if ranks * stride <= self.node else self.gpu.network


def _gpu(
    name: str, gib: float, bf16: float, hbm: float, link: float, fp8: float = 0, fp4: float = 0, **more: float
) -> Gpu:
    """A device from figures in GiB, Tflop/s, TB/s and GB/s."""
    peaks = {"bf16": bf16, "fp16": bf16} | ({"fp8": fp8} if fp8 else {}) | ({"fp4": fp4} if fp4 else {})
    per_node = int(more.pop("per_node", 8))
    return Gpu(
        name,
        gib * GIB,
        {precision: rate * 1e12 for precision, rate in peaks.items()},
        hbm * 1e12,
        link * 1e9,
        per_node,
        network=more.pop("network", 50) * 1e9,
        sustained=more.pop("sustained", 0.75),
        host_link=more.pop("host", 25) * 1e9,
        host_memory=more.pop("host_gib", 200) * GIB,
    )


_ALL = (
    _gpu("a100-40", 39.5, 312, 1.555, 300, network=25, sustained=0.73),
    _gpu("a100", 79.2, 312, 2.04, 300, network=25, sustained=0.73),
    _gpu("h100", 79.6, 989, 3.35, 450, fp8=1979, sustained=0.79, host=50),
    _gpu("h100-500w", 94.5, 989, 2.4, 450, fp8=1979, sustained=0.55, host=50),
    _gpu("h100-pcie", 79.6, 756, 2.0, 300, fp8=1513, sustained=0.65, host=50),
    _gpu("h800", 79.6, 989, 3.35, 200, fp8=1979, sustained=0.79, host=50),
    _gpu("h200", 140.4, 989, 4.8, 450, fp8=1979, sustained=0.79, host=50),
    _gpu("b200", 178.5, 2250, 8.0, 900, fp8=4500, fp4=9000, host=50),
    _gpu("gb200", 185, 2500, 8.0, 900, fp8=5000, fp4=10000, per_node=72, sustained=0.69, host=200),
    _gpu(
        "gb300", 277, 2500, 8.0, 900, fp8=5000, fp4=15000, per_node=72, network=100, sustained=0.96, host=200
    ),
    _gpu("mi300x", 191.5, 1300, 5.3, 448, fp8=2600, sustained=0.55, host=50),
    _gpu("l40s", 44.5, 362, 0.864, 25, fp8=733, network=12.5, sustained=0.7, host_gib=100),
    _gpu("l4", 22.0, 121, 0.3, 25, fp8=242, network=6, sustained=0.5, host_gib=48),
    _gpu("a10g", 22.0, 70, 0.6, 25, network=6, sustained=0.8, host_gib=48),
    _gpu("rtx-4090", 23.5, 165, 1.008, 25, fp8=330, network=3, sustained=0.9, host_gib=56),
    _gpu("rtx-5090", 31.4, 210, 1.79, 50, fp8=419, fp4=838, network=3, sustained=0.9),
)
GPUS = {gpu.name: gpu for gpu in _ALL}


def gpu_called(name: str) -> Gpu | None:
    """The device by its driver's name, such as NVIDIA H100 80GB HBM3 or NVIDIA GeForce RTX 4090. None if it is
    unknown.
    """
    words = name.lower().replace("-", " ").split()
    if "nvl" in words:
        return None
    if "rtx" in words:
        return GPUS.get("-".join(words[words.index("rtx") :]))
    found = next((word for word in words if word in GPUS), None)
    if found == "h100" and "pcie" in words:
        found = "h100-pcie"
    if found == "a100" and any(word.startswith("40gb") for word in words):
        found = "a100-40"
    return GPUS.get(found) if found else None


def gpu_of(
    name: str,
    *,
    memory: float | None = None,
    peak: float | None = None,
    bandwidth: float | None = None,
    link: float | None = None,
    network: float | None = None,
    per_node: int | None = None,
    host_memory: float | None = None,
) -> Gpu:
    """A preset with overrides in GiB, Tflop/s (bf16), TB/s and GB/s."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        needed = {"memory": memory, "peak": peak, "bandwidth": bandwidth, "link": link}
        missing = [field for field, value in needed.items() if value is None]
        if missing:
            near = difflib.get_close_matches(name.lower(), GPUS, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"Unknown gpu {name!r}.{hint} Known: {', '.join(GPUS)}. For another device set "
                f"{', '.join('--' + field for field in missing)}.",
                param="gpu",
            )
        gpu = _gpu(name, 1, 1, 1, 1)
    given = {
        "memory": memory and memory * GIB,
        "host_memory": host_memory and host_memory * GIB,
        "bandwidth": bandwidth and bandwidth * 1e12,
        "link": link and link * 1e9,
        "network": network and network * 1e9,
        "per_node": per_node,
    }
    gpu = replace(gpu, **{field: value for field, value in given.items() if value is not None})  # type: ignore[arg-type]
    if peak is not None:
        scale = peak * 1e12 / gpu.peaks["bf16"]
        gpu = replace(gpu, peaks={precision: rate * scale for precision, rate in gpu.peaks.items()})
    return gpu
