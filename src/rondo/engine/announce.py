"""What computes here, said once at the start."""

from __future__ import annotations

import torch

from rondo.base.log import get_logger
from rondo.models import Decoder
from rondo.ops.dispatch import references_only
from rondo.ops.native.ahead import lost, runs
from rondo.ops.native.linear import TYPES, takes_bf16
from rondo.ops.native.numbers import SHORT

log = get_logger(__name__)


def announce(model: Decoder, one_call: bool) -> None:
    """`one_call` where a step of the model is compiled as a whole."""
    dtype = SHORT.get(model.dtype, str(model.dtype))
    if model.device.type != "cpu":
        log.info(f"{dtype} {model.device.type}")
        return
    one_call = one_call and not references_only()
    version = runs(dtype) if one_call or _multiplies(model.dtype) else "plain torch"
    threads = torch.get_num_threads()
    step = "one compiled call" if one_call else "operation by operation"
    log.info(f"{dtype} {version}, {threads} thread{'s' * (threads > 1)}", extra={"step": step})
    if why := lost():
        log.warning(why)


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether the compiled product takes numbers of this type, and not torch's own."""
    return dtype in TYPES and (dtype != torch.bfloat16 or takes_bf16()) and not references_only()
