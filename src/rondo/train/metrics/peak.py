"""Peak operations per second of a device, the basis of MFU."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from rondo.ops.measure.limits import measure_flops
from rondo.plan.cost.cluster import gpu_called

BUDGET = 0.3
"""Duration of the measurement on a CPU, in seconds."""
PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Peak:
    """Operations per second of one rank's device, and the type of the multiplied numbers."""

    flops: float
    precision: str


def peak_of(device: torch.device, dtype: torch.dtype, told: float = 0.0) -> Peak | None:
    """Peak of a device: `told` in Tflop/s, or else the data sheet value for a GPU's name, or the measured value for a
    CPU. None if unknown.
    """
    precision = PRECISIONS.get(dtype, "fp32")
    if told:
        return Peak(told * 1e12, precision)
    if device.type == "cpu":
        return _of_cpu(precision, torch.get_num_threads())
    gpu = gpu_called(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if gpu is None:
        return None
    if precision not in gpu.peaks:
        precision = "bf16"
    return Peak(gpu.peaks[precision], precision)


@functools.cache
def _of_cpu(precision: str, threads: int) -> Peak:
    """Peak for products in registers with the available threads, in this type or in fp32."""
    kinds = {"fp32", precision} & {"fp32", "bf16"}
    return Peak(max(measure_flops(kind, BUDGET / len(kinds)) for kind in kinds), precision)
