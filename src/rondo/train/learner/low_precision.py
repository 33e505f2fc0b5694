"""A model's working copy: its layers compute in 16 bits, while the weights, the sums of their gradients and what the
optimizer keeps are in 32."""

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
        """Each parameter is copied once, into `dtype`; what is quantized or balanced is the model's own."""
        made = {name: _working(name, p, dtype) for name, p in model.named_parameters()}
        known = {id(p): made[name] for name, p in model.named_parameters()}
        self.model: Decoder = copy.deepcopy(model, known)
        self._pairs = [(p, made[name]) for name, p in model.named_parameters() if made[name] is not p]
        for master, own in self._pairs:
            if own.requires_grad:
                own.register_post_accumulate_grad_hook(partial(_hand_over, master))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def refresh(self, changed: Sequence[Tensor] | None = None) -> None:
        """After the model's weights have changed: these, or any."""
        only = None if changed is None else set(map(id, changed))
        for master, own in self._pairs:
            if own.requires_grad and (only is None or id(master) in only):
                own.copy_(master)


def _working(name: str, parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    if name.endswith(KEPT_AS_STORED) or not parameter.is_floating_point():
        return parameter
    return nn.Parameter(parameter.detach().to(dtype, copy=True), parameter.requires_grad)


def _hand_over(master: nn.Parameter, own: Tensor) -> None:
    """One row's gradient goes to the sum of all."""
    assert own.grad is not None
    if master.grad is None:
        master.grad = own.grad.to(master.dtype)
    else:
        master.grad.add_(own.grad)
    own.grad = None
