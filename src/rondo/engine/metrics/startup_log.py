"""Log line at start about device, kernels and threads."""

from __future__ import annotations

import torch

from rondo.base.telemetry.log import get_logger
from rondo.models import Decoder
from rondo.ops.dispatch import references_only
from rondo.ops.native.build.ahead import lost, runs
from rondo.ops.native.build.numbers import SHORT
from rondo.ops.native.gemm.linear import TYPES, takes_bf16
from rondo.ops.triton.at_hand import missing, on_device, version

log = get_logger(__name__)


def announce(model: Decoder, one_call: bool, graphs: bool = False) -> None:
    """Logs the execution mode: `one_call` for a model step compiled as a whole, `graphs` for decode steps as CUDA
    graphs."""
    dtype = SHORT.get(model.dtype, str(model.dtype))
    if model.device.type != "cpu":
        _announce_device(dtype, model.device, graphs)
        return
    one_call = one_call and not references_only()
    version = runs(dtype) if one_call or _multiplies(model.dtype) else "plain torch"
    threads = torch.get_num_threads()
    step = "one compiled call" if one_call else "operation by operation"
    log.info(f"{dtype} {version}, {threads} thread{'s' * (threads > 1)}", extra={"step": step})
    if why := lost():
        log.warning(why)


def _announce_device(dtype: str, device: torch.device, graphs: bool) -> None:
    kernels = version() if on_device(device) and not references_only() else "plain torch"
    step = "decode from CUDA graphs" if graphs else "operation by operation"
    log.info(f"{dtype} {device.type}, {kernels}", extra={"step": step})
    if device.type == "cuda" and (why := missing()):
        log.warning(
            f"what is between products, and attention, is several times slower than it could be: {why}"
        )


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether the compiled matrix product, not torch's, is used for this type."""
    return dtype in TYPES and (dtype != torch.bfloat16 or takes_bf16()) and not references_only()
