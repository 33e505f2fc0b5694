"""Low-precision working copy of a model: its layers compute in 16 bits, while the weights, the sums of their gradients
and the optimizer's state have 32.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rondo.models.decoder import Decoder
from rondo.models.files.checkpoint import KEPT_AS_STORED


class LowPrecisionCopy:
    def __init__(self, model: Decoder, dtype: torch.dtype) -> None:
        """Copies each parameter once, into `dtype`; quantized parameters and the routers' corrections are shared with
        the model.
        """
        made = {name: _working(name, p, dtype) for name, p in model.named_parameters()}
        known = {id(p): made[name] for name, p in model.named_parameters()}
        self.model: Decoder = copy.deepcopy(model, known)
        self._pairs = [(p, made[name]) for name, p in model.named_parameters() if made[name] is not p]
        for master, own in self._pairs:
            if own.requires_grad:
                own.register_post_accumulate_grad_hook(partial(_hand_over, master))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def refresh(self, changed: Sequence[Tensor] | None = None) -> None:
        """Updates the copy after the model's weights have changed: the given ones, or any."""
        only = None if changed is None else set(map(id, changed))
        for master, own in self._pairs:
            if own.requires_grad and (only is None or id(master) in only):
                own.copy_(master)


def _working(name: str, parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    if name.endswith(KEPT_AS_STORED) or not parameter.is_floating_point():
        return parameter
    return nn.Parameter(parameter.detach().to(dtype, copy=True), parameter.requires_grad)


def _hand_over(master: nn.Parameter, own: Tensor) -> None:
    """Adds one row's gradient to the sum of the master weight."""
    assert own.grad is not None
    if master.grad is None:
        master.grad = own.grad.to(master.dtype)
    else:
        master.grad.add_(own.grad)
    own.grad = None
